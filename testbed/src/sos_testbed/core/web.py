"""Web server of every host: Debian's nginx without tuning. Pure.

Port 80 is covered by the service of examples/01-two-sites and port 8080 is not, so accelerated and plain transfers use the same
server, bytes and hosts. `GET /100M` serves random bytes, `PUT /upload/NAME` stores the request body.
"""

from __future__ import annotations

from pathlib import PurePosixPath

SOS_PORT = 80
PLAIN_PORT = 8080

# remote and local address as the server's kernel sees them, request, status and bytes
LOG_FORMAT = "$remote_addr:$remote_port $server_addr:$server_port $request_method $uri $status $body_bytes_sent $request_time"


def build_config(folder: PurePosixPath, www: PurePosixPath) -> str:
    """nginx.conf of one host. Uploads are stored in `folder`/upload."""
    temporary = "\n".join(f"  {kind}_temp_path {folder}/half-{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""daemon off;
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 8192; }}
http {{
  sendfile on;
  log_format sos '{LOG_FORMAT}';
  access_log {folder}/access.log sos;
{temporary}
  default_type application/octet-stream;
  server {{
    listen {SOS_PORT} backlog=4096;
    listen {PLAIN_PORT} backlog=4096;
    root {www};
    location /upload/ {{
      root {folder};
      client_max_body_size 0;
      create_full_put_path on;
      dav_methods PUT;
    }}
  }}
}}
"""
