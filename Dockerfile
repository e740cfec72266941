# Image of the operator. Build from the top of the repository: docker build -t sos-operator:0.1.0 .
# Needs no BuildKit. Labels with the origin: --build-arg SOURCE=URL --build-arg REVISION=$(git rev-parse HEAD); otherwise empty.

# Base image: Python on Debian, with a full version. A tag can be moved to another image: for reproducible bytes, set a digest
# (--build-arg BASE=docker.io/library/python@sha256:...; docs/install.md).
ARG BASE=docker.io/library/python:3.11.16-slim-bookworm

FROM $BASE AS build
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/sos
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
# Dependencies are first, from the lock file alone, because they change less often than the code. uv needs every locked member.
COPY pyproject.toml uv.lock ./
COPY compile/pyproject.toml compile/
COPY operator/pyproject.toml operator/
COPY operator/kubectl-plugin/pyproject.toml operator/kubectl-plugin/
COPY controller-image/pyproject.toml controller-image/
COPY testbed/pyproject.toml testbed/
COPY e2e/pyproject.toml e2e/
RUN uv sync --frozen --no-cache --no-dev --package sos-operator --no-install-workspace
COPY crds/ crds/
COPY compile/ compile/
COPY operator/ operator/
RUN uv sync --frozen --no-cache --no-dev --package sos-operator --no-editable

FROM $BASE
ARG BASE
LABEL org.opencontainers.image.title="sos-operator" \
      org.opencontainers.image.description="Makes a cluster match its SOS objects, and takes away what it made" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.base.name="$BASE" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/sos /opt/sos
# PYTHONSAFEPATH: the working directory of a process must never shadow Python's own modules.
ENV PATH=/opt/sos/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["python", "-m", "sos_operator"]
CMD ["run"]
# These labels are last, so that a new revision does not invalidate the cache of the layers above.
ARG SOURCE=""
ARG REVISION=""
LABEL org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.revision="$REVISION"
