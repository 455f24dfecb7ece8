"""Workloads: what the ranks of one or several jobs send, as tables of tasks."""
