"""A gateway that obeys: plays requests into the log, waits for decisions, and measures what came of it.

`plan` has what is to be sent, `gateway` what a gateway does (pure: time is an argument), `batching` how events become
records, `tally` what is counted, `kafka_load` the loop around them, `outcome` and `load_view` what is reported.
"""
