"""The HTTP surface: the Managed Agents API and Roost's own, in four rooms; every arrow points down.

`app` is the ASGI application and `operations` the list of everything it answers. `resources` has one file
for each thing that clients can name. `framework` turns an operation into HTTP and knows no resource.
`access` is who calls, from where, and how often.
"""
