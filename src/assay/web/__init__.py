"""The workbench: a local page that does what the command line does, and shows it as pictures.

The server itself imports nothing that computes: studies and comparisons run in processes of their own (`child`), the
report's templates draw the record, and every view is an address that opens it again.
"""
