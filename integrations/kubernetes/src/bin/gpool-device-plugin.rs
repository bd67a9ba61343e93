//! Tells the kubelet how much of this host's GPUs Kubernetes may give out.

fn main() -> std::process::ExitCode {
    gpool_kubernetes::main()
}
