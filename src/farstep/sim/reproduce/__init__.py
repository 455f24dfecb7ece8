"""Published results again: experiments that say what was published, what the simulator finds, and whether they agree.

`farstep reproduce` runs them: `htsim` against per-flow results of htsim, `mrc` against the figures of the MRC papers,
`questions` on what the papers leave open. Every experiment is a function of a seed; nothing is tuned for one of them.
"""
