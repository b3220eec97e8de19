# Stands in for python:3.11-slim-bookworm: Debian's Python 3.11, with a name for it where the official image has its own.
FROM debian
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/bin/python3 /usr/local/bin/python
CMD ["python"]
