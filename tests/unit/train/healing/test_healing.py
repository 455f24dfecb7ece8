from tests.unit.train.healing.fleet import Fleet, digest_after, wait_until


def test_a_joiner_gets_the_state_while_the_others_train() -> None:
    with Fleet(2) as fleet:
        wait_until(lambda: fleet.committed > 3)
        joiner = fleet.join()
        joiner.wait_ready()
        with fleet.paused():
            target = fleet.committed
            wait_until(lambda: joiner.adapter.committed == target)
            assert joiner.adapter.digest() == fleet.seats[0].adapter.digest() == digest_after(target)
        report = joiner.healing.last_pull
        assert report is not None
        assert sorted(report.chunks_by_source) == ["a-0", "a-1"]
        assert report.num_fetched == report.chunks_by_source.total() == -(-report.length_bytes // (16 << 10))
