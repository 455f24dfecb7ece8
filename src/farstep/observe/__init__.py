"""What people look at: the event log of a run, its live display, its summary and its report.

Everything here is fed by the records of `farstep.observe.events`; nothing here reaches into the
engine, the trainer or torch, so a log can be looked at on any machine, long after the run or after
the run has died. Importing this package loads none of its modules.
"""
