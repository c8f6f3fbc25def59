"""Who may do what: keys, logins, the rules, and named workspaces that keys share."""
