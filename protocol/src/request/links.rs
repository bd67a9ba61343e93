//! Variables that engines set for what a container is linked with, and that are no keys.
//!
//! Kubernetes tells every container of the Services of its namespace, Docker of what `--link` names, in variables that begin
//! with that name: a Service `gpool` or `gpool-metrics` would otherwise stop each container of its namespace.
//! <https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables>,
//! <https://docs.docker.com/network/links/#environment-variables>.

use std::net::IpAddr;

/// What is told of one port, behind its number and protocol. The last four are Docker's, of a range of ports.
const OF_PORT: [&str; 8] = ["", "_PROTO", "_PORT", "_ADDR", "_START", "_END", "_PORT_START", "_PORT_END"];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Whether an engine sets `name`, which is that of a variable without the prefix `GPOOL_`, to `value` for a Service or link
/// called `gpool`, or `gpool-` and more.
pub fn is_of_link(name: &str, value: &str) -> bool {
    // What the Service's or link's own name adds stands in front; of what it cannot be told from, any will do.
    let begins = [0].into_iter().chain(name.match_indices('_').map(|(at, _)| at + 1));
    begins.into_iter().any(|at| is_suffix(&name[at..], value))
}

fn is_suffix(suffix: &str, value: &str) -> bool {
    let is_number = |text: &str| text.parse::<u16>().is_ok();
    // `tcp://10.0.0.11:6379`
    let is_address = || {
        value
            .split_once("://")
            .is_some_and(|(protocol, _)| PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(protocol)))
    };
    match suffix {
        "SERVICE_HOST" => return value.parse::<IpAddr>().is_ok(),
        "SERVICE_PORT" => return is_number(value),
        "PORT" => return is_address(),
        // `/container/alias`
        "NAME" => return value.starts_with('/'),
        _ => {}
    }
    // Of a linked container its environment is told as well, whatever its names are.
    if suffix.strip_prefix("ENV_").is_some_and(|rest| !rest.is_empty()) {
        return true;
    }
    if let Some(port) = suffix.strip_prefix("SERVICE_PORT_") {
        return !port.is_empty() && is_number(value);
    }
    let Some((number, rest)) = suffix.strip_prefix("PORT_").and_then(|rest| rest.split_once('_')) else { return false };
    let Some(of_port) = PROTOCOLS.iter().find_map(|protocol| rest.strip_prefix(protocol)) else { return false };
    is_number(number) && OF_PORT.contains(&of_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_tell_of_services_and_links_is_known() {
        for (name, value) in [
            ("SERVICE_HOST", "10.0.0.11"),
            ("SERVICE_HOST", "fd00::1"),
            ("SERVICE_PORT", "6379"),
            ("SERVICE_PORT_HTTP_METRICS", "9400"),
            ("PORT", "tcp://10.0.0.11:6379"),
            ("PORT_6379_TCP", "tcp://10.0.0.11:6379"),
            ("PORT_6379_TCP_PROTO", "tcp"),
            ("PORT_6379_TCP_PORT", "6379"),
            ("PORT_6379_TCP_ADDR", "10.0.0.11"),
            ("PORT_53_UDP_ADDR", "10.0.0.11"),
            ("METRICS_SERVICE_HOST", "10.0.0.11"),
            ("METRICS_V2_PORT_9400_TCP_ADDR", "10.0.0.11"),
            ("NAME", "/web/gpool"),
            ("DB_NAME", "/web/gpool-db"),
            ("PORT_80_TCP_PORT_START", "80"),
            ("ENV_PATH", "/bin"),
            ("DB_ENV_FRACTION", "0.3"),
        ] {
            assert!(is_of_link(name, value), "{name}={value}");
        }
    }

    #[test]
    fn what_a_person_writes_is_not_taken_for_that() {
        for (name, value) in [
            ("FRACTION", "0.3"),
            ("FRACTON", "0.3"),
            ("NAME", "web"),
            ("PORT", "80"),
            ("SERVICE_HOST", "example.com"),
            ("SERVICE_PORT", "http"),
            ("SERVICE_PORT_", "80"),
            ("SERVICE", "80"),
            ("PORT_80", "80"),
            ("PORT_http_TCP", "x"),
            ("PORT_80_TCP_NAME", "x"),
            ("PORT_80_ICMP", "x"),
            ("PORT_TCP", "x"),
            ("ENV_", "x"),
            ("ENV", "x"),
            ("MEMORY_PORT", "4GiB"),
            ("", ""),
        ] {
            assert!(!is_of_link(name, value), "{name}={value}");
        }
    }
}
