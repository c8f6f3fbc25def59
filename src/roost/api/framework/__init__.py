"""What every resource uses to speak HTTP; nothing in here knows a resource."""
