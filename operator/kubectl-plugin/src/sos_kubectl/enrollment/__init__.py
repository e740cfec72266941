"""Pure part of `kubectl sos enroll`: a machine's objects in the cluster, and the archive for the machine.

`machine`              SosPeer and Secret of a machine, its site id and its keys
`archive`              the tar archive: enrollment file and systemd unit
`sos-agent.service`    the unit, also a part of the Debian package (scripts/deb.sh)
"""
