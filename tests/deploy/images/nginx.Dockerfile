# What the compose file needs of the official nginx. The one of the base's Debian is too old for it; the
# next Debian's is not, and a mirror may be some days behind.
FROM roost-test-base
RUN echo 'deb [check-valid-until=no] http://deb.debian.org/debian forky main' >/etc/apt/sources.list \
    && apt-get update \
    && apt-get install -y --no-install-recommends nginx \
    && rm -rf /var/lib/apt/lists/*
STOPSIGNAL SIGQUIT
CMD ["nginx", "-g", "daemon off;"]
