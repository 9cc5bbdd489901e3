"""Where Dagster is notified that a job comes from: it queues no run without that."""

from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin


def origin_of(job_name: str) -> RemoteJobOrigin:
    """Return the origin of a job of the code server that deploy/workspace.yaml names."""
    server = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=4266, location_name="ops_pipelines")
    return RemoteJobOrigin(RemoteRepositoryOrigin(server, "__repository__"), job_name)
