"""The process around the loop: settings, logs, metrics, health.

`settings`   everything that the environment sets, read once at start
`defaults`   the release's default SosController and SosAgent
`health`     /healthz, /readyz and /metrics
`metrics`    counters and gauges; written by the loop, read by no decision
`bugs`       confines an unexpected exception to its object: log, count, alert
`logs`       one JSON object per line on standard error
"""
