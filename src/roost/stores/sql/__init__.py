"""What the databases have in common: how rows become structs, and how a batch is worked out."""
