"""A run of two sites whose coordinator has certificates: members encrypt what they send each other, unasked."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from farstep.coordinator.certificates import make_certificates

MEMBER = """
import json
import torch
from torch.utils.data import TensorDataset
import farstep

torch.set_num_threads(1)
data = TensorDataset(torch.arange(512.0)[:, None])
model = torch.nn.Linear(1, 1)
run = farstep.join()
trainer = farstep.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=1e-6))
seen = set()
for step, batch in enumerate(run.shard(data, batch_size=8, epochs=100)):
    trainer.step(lambda b: model(b[0]).square().mean(), batch)
    seen |= {(str(c.protection), c.peer_identity) for c in run.endpoint.connections if c.peer_identity}
    if step >= 5 and seen:
        break
print(json.dumps([sorted(seen), run.endpoint.stats().sealed]), flush=True)
run.close()
"""
LONG_S = 120


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_members_of_two_sites_encrypt_unasked(tmp_path):
    make_certificates(tmp_path, ["east-0", "west-0"])
    (tmp_path / "member.py").write_text(MEMBER)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FARSTEP_")}
    where = tmp_path / "where"
    command = [
        "coordinator",
        "--tls",
        str(tmp_path),
        "--port",
        "0",
        "--announce",
        str(where),
        "--groups",
        "2",
    ]
    coordinator = subprocess.Popen(
        [sys.executable, "-m", "farstep", *command], env=clean, stdout=subprocess.DEVNULL
    )
    members = []
    try:
        end_s = time.monotonic() + LONG_S
        while not where.exists():
            assert time.monotonic() < end_s
            assert coordinator.poll() is None
            time.sleep(0.05)
        for group in ("east-0", "west-0"):
            environment = {
                **clean,
                "FARSTEP_COORDINATOR": f"file:{where}",
                "FARSTEP_GROUP": group,
                "FARSTEP_SITE": group[:4],
                "FARSTEP_TLS": str(tmp_path),
                "FARSTEP_BIND": "127.0.0.1:0",
            }
            members.append(
                subprocess.Popen(
                    [sys.executable, str(tmp_path / "member.py")],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for member, other in zip(members, ("west-0", "east-0"), strict=True):
            out, errors = member.communicate(timeout=LONG_S)
            assert member.returncode == 0, errors
            seen, sealed = json.loads(out.strip().splitlines()[-1])
            assert seen == [["encrypt", other]]
            assert sealed > 10
    finally:
        for process in (*members, coordinator):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
