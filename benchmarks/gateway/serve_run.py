"""`serve run CONFIG` on a Ray of its own: small, and without a dashboard, so that rivals pay for nothing unneeded."""

import sys

import ray
from ray.serve.scripts import run

# Serve has replicas listen to other replicas on every interface, and unpickle what comes.
ON_LOOPBACK = {"worker_process_setup_hook": "deployments.replica_port.bind_to_node"}

if __name__ == "__main__":
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        namespace="serve",
        log_to_driver=False,
        runtime_env=ON_LOOPBACK,
    )
    run.main(sys.argv[1:], prog_name="serve run")
