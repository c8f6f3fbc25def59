"""The files that sessions work in: here already, restored first, or shared with others."""
