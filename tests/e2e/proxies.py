"""nginx and HAProxy in front of a server, as child processes on loopback.

Both are set up to be as dangerous as an operator may make them: lenient with what they forward, bodies
passed on as they come, and ONE kept-alive connection to the server that all their clients share, so that
bytes which the server reads otherwise than the proxy hit the next client's request for certain.
They forbid /metrics and /v1/kvahead/, as the operator of a public server would.
"""

from __future__ import annotations

import pathlib
import shutil
import socket
import subprocess

from harness import wait_until

NGINX = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    merge_slashes off;
    ignore_invalid_headers off;
    underscores_in_headers on;
    client_max_body_size 0;
    large_client_header_buffers 8 64k;
    keepalive_requests 1000000;
    upstream kvahead {{
        server 127.0.0.1:{server};
        keepalive 1;
        keepalive_requests 1000000;
    }}
    map $http_upgrade $forwarded_connection {{ default upgrade; "" ""; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://kvahead;
            proxy_http_version 1.1;
            proxy_set_header Connection $forwarded_connection;
            proxy_set_header Upgrade $http_upgrade;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_next_upstream off;
        }}
        location /metrics {{ return 403; }}
        location /v1/kvahead/ {{ return 403; }}
    }}
}}
"""

HAPROXY = """
global
    nbthread 1
    log stderr local0 warning
defaults
    mode http
    retries 0
    timeout connect 30s
    timeout client 60s
    timeout server 60s
    option accept-invalid-http-request
    option accept-invalid-http-response
    http-reuse always
frontend front
    bind 127.0.0.1:{port}
    http-request deny if {{ path,url_dec -m beg /metrics /v1/kvahead/ }}
    default_backend kvahead
backend kvahead
    server one 127.0.0.1:{server} pool-max-conn 1
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Proxy:
    """A proxy process in front of the server at a port. Use as a context manager."""

    def __init__(self, name: str, server_port: int, folder: pathlib.Path) -> None:
        self.name, self.port, self.folder = name, free_port(), folder
        fields = {"folder": folder, "server": server_port, "port": self.port}
        config = folder / f"{name}.conf"
        config.write_text({"nginx": NGINX, "haproxy": HAPROXY}[name].format(**fields))
        binary = find_program(name)
        self.command = [binary, "-p", str(folder), "-c", str(config)]
        if name == "haproxy":
            self.command = [binary, "-db", "-f", str(config)]

    def __enter__(self) -> Proxy:
        with open(self.folder / f"{self.name}.out", "wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(f"{self.name} listens", self._listens)
        return self

    def _listens(self) -> bool:
        log = (self.folder / f"{self.name}.out").read_text()
        assert self.process.poll() is None, f"{self.name} ended: {log}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def find_program(name: str) -> str | None:
    """Where a proxy is; Debian keeps them out of a user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
