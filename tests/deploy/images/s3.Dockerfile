# What the compose file needs of `chrislusf/seaweedfs`: the program. The context is the folder it is in.
FROM roost-test-base
COPY weed /usr/bin/weed
VOLUME /data
