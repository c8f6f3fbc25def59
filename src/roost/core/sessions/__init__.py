"""The life of a session besides its work: made, changed, forked, exported, archived and deleted."""
