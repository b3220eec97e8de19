# The image of every process of Strandline; the command says which. docker-compose.yml shows them all.
FROM python:3.11-slim-bookworm AS build
RUN python -m venv /opt/strandline
ENV PATH=/opt/strandline/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
# The dependencies come first, so that a change of our own code does not fetch them again.
COPY requirements.lock requirements-build.lock ./
RUN pip install --require-hashes --requirement requirements.lock \
    && pip install --require-hashes --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY strandline strandline
# Without build isolation: pip would fetch setuptools without a hash for it.
RUN pip install --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Strandline" \
      org.opencontainers.image.description="Exactly-once streaming ETL for sensor data" \
      org.opencontainers.image.licenses="Apache-2.0"
# Spark needs a Java runtime; procps gives its launcher the `ps` that it calls. Their versions are those of the base image's
# release: Debian takes older ones away, so a pinned one could not be installed for long.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home strandline \
    && install --directory --owner=strandline --group=strandline /var/lib/strandline
COPY --from=build /opt/strandline /opt/strandline
ENV PATH=/opt/strandline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    STRANDLINE_DATA_DIR=/var/lib/strandline \
    STRANDLINE_CACHE_DIR=/var/lib/strandline/cache
# By number, so that Kubernetes sees that it is not root.
USER 10001
WORKDIR /var/lib/strandline
VOLUME ["/var/lib/strandline"]
CMD ["strandline", "--help"]
