"""A coordinator as people start it, and ways to ask it."""

import subprocess
import sys

import httpx

from farstep.membership import MemberInfo
from farstep.membership.client import MembershipClient
from farstep.membership.tls import COORDINATOR_NAME, TlsFiles
from tests.integration.coordinator.processes import wait_until


class Served:
    """A coordinator started by its command, and how to reach it."""

    def __init__(self, pki, folder, *arguments, port=0, groups=2):
        self.pki = pki
        self.log = folder / "out" / "events.jsonl"
        self.where = where = folder / "where"
        where.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "farstep",
            "coordinator",
            "--port",
            str(port),
            "--announce",
            str(where),
        ]
        command += ["--out", str(folder / "out"), "--groups", str(groups), *arguments]
        command += ["--tls", str(pki)] if pki else ["--insecure"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: where.exists() or self.child.poll() is not None, 30)
        assert self.child.poll() is None, self.child.communicate()
        self.url = where.read_text().split()[0]
        self.base = self.url.replace("ws", "http", 1)

    def client(self, name=None):
        verify = TlsFiles.in_directory(self.pki, name).client_context() if name else False
        return httpx.Client(base_url=self.base, verify=verify, timeout=10, trust_env=False)

    def ask(self, name, method, path, **more):
        with self.client(name) as client:
            return client.request(method, path, extensions={"sni_hostname": COORDINATOR_NAME}, **more)

    def member(self, name):
        tls = TlsFiles.in_directory(self.pki, name) if self.pki else None
        client = MembershipClient(self.url, MemberInfo.create(name, site="here"), tls=tls)
        client.report_progress(0)
        return client

    def close(self):
        self.child.kill()
        self.child.communicate()
