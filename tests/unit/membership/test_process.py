import os
import subprocess
import sys

from farstep.membership.process import has_exited, process_identity, same_host


def test_own_process_runs():
    assert has_exited(process_identity()) is False


def test_process_is_told_dead_from_the_moment_it_is():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(child.pid)
    try:
        assert has_exited(identity) is False
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_exited(identity) is True  # nobody has reaped it yet
    finally:
        child.wait()
        child.stdin.close()
    assert has_exited(identity) is True


def test_number_that_was_given_to_another_process_is_no_sign_of_life():
    identity = process_identity()
    place, _, start = identity.rpartition(":")
    assert has_exited(f"{place}:{int(start) - 1}") is True


def test_of_other_hosts_nothing_can_be_told():
    boot, namespace, pid, start = process_identity().split(":")
    assert has_exited(f"another-boot:{namespace}:{pid}:{start}") is None
    assert has_exited(f"{boot}:1:{pid}:{start}") is None
    for text in ("", ":", "x", ":::", f"{boot}:{namespace}:pid:{start}", "x" * 200):
        assert has_exited(text) is None


def test_same_host_is_the_same_kernel_and_namespace():
    mine = process_identity()
    boot, namespace, _, _ = mine.split(":")
    assert same_host(mine, f"{boot}:{namespace}:1:1")
    assert not same_host(mine, f"{boot}:1:1:1")
    assert not same_host("", "")
