"""The event-sourced core: what happened first, what happened twice, and what a session's events come to.

`clocks` has logical time, `stamping` gives it to events at the edge, `order` is the one total order of events,
`session` folds the events of a session, `commands` turns what is wanted into events, `duplicates` lets each fact pass
once. docs/event-core.md has it on one page.
"""
