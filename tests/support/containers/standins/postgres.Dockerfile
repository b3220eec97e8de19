# Stands in for postgres: Debian's PostgreSQL, an older one, with the official image's user, directories and way to start.
FROM debian
RUN groupadd --system --gid 999 postgres && useradd --system --gid postgres --uid 999 --home-dir /var/lib/postgresql postgres \
    && apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-common \
    && sed -i 's/#create_main_cluster .*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf \
    && apt-get install --yes --no-install-recommends postgresql-15 \
    && rm -rf /var/lib/apt/lists/* \
    && sed -i "s/^#listen_addresses = .*/listen_addresses = '*'/" /usr/share/postgresql/15/postgresql.conf.sample
COPY postgres /usr/local/bin
ENV PATH=$PATH:/usr/lib/postgresql/15/bin PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
RUN install --directory --owner=postgres --group=postgres --mode=3777 /var/run/postgresql \
    && install --directory --owner=postgres --group=postgres --mode=1777 /var/lib/postgresql "$PGDATA"
VOLUME ["/var/lib/postgresql/data"]
ENTRYPOINT ["postgres-start.sh"]
CMD ["postgres"]
STOPSIGNAL SIGINT
