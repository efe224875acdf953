"""What gateways and engines emit, read as canonical events.

An adapter is a pure function from one foreign record to events: `record` has what it is given and what it gives,
`fields` how single values are read, `attempt` how what is known of one attempt becomes its events.
"""
