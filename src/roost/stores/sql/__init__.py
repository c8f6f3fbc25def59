"""What the databases have in common: the ports on top of a writer and readers, in one wording.

Statements are written for SQLite. PostgreSQL's driver puts them into its own words (`postgres.driver.worded`):
other placeholders, and what SQLite keeps in `heads` is there in `sessions`.
"""
