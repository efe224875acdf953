"""What changed between two versions of a schema, and which changes break its readers.

`sources` reads schemas, `compare` tells their changes; `messages`, `fields` and `enums` hold the rules.
"""
