# The operator. Build from the top of the repository: docker build -t sos-operator:0.1.0 .
# Needs no BuildKit. Where it comes from: --build-arg SOURCE=URL --build-arg REVISION=$(git rev-parse HEAD); empty labels otherwise.

# Python and Debian under it, with a full version. Tags can be made anew: whoever wants the same bytes each time gives a digest
# (--build-arg BASE=docker.io/library/python@sha256:...; docs/install.md).
ARG BASE=docker.io/library/python:3.11.16-slim-bookworm

FROM $BASE AS build
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/sos
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
# Dependencies first, from the lock alone: they change less often than the code. uv wants to see every member it locked.
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
# Safe path: the folder a process starts in must never shadow Python's own modules.
ENV PATH=/opt/sos/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["python", "-m", "sos_operator"]
CMD ["run"]
# Last, as a new revision must not cost the layers above.
ARG SOURCE=""
ARG REVISION=""
LABEL org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.revision="$REVISION"
