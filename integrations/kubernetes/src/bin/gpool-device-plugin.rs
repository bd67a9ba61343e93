//! Tells the kubelet how much of this host's GPUs Kubernetes may give out.

fn main() -> std::process::ExitCode {
    gpool_protocol::is_build(option_env!("GPOOL_VERSION"));
    gpool_kubernetes::main()
}
