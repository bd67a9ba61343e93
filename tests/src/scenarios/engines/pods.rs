//! Pods as a kubelet makes them: through containerd's CRI, with the handler that `gpool runtime configure` writes, on the
//! node's network.

use super::life::{CAP, COMMAND};
use super::{check_shares, wait_for_end, wait_for_lease, wait_for_room};
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Cri, Host, NAMESPACE, Pod};
use crate::image;
use crate::namespaces::Inside;
use crate::scenarios::{finish, reload_with};
use crate::tenant::report;
use gpool_protocol::{CountedResource, Counts, Mechanism, PERCENT_ANNOTATION, Seal};

/// The handler that a RuntimeClass would name.
pub(super) const HANDLER: &str = "gpool";
/// Of the pod, for one container of it, and one that is none of gpool's.
const ANNOTATIONS: [(&str, &str); 4] = [
    ("gpool.io/fraction", "0.3"),
    ("gpool.io/fraction.web", "0.2"),
    ("gpool.io/memory", CAP),
    ("example.com/fraction", "1"),
];

/// Makes pods with shares, with one that is refused, and with none.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let containerd = host.containerd_for_pods()?;
    let outcome = with_shares(&host, containerd.cri())
        .and_then(|()| restarted(&host, containerd.cri()))
        .and_then(|()| one_after_the_other(&host, containerd.cri()))
        .and_then(|()| for_one_only(&host, containerd.cri()))
        .and_then(|()| refused(&host, containerd.cri()))
        .and_then(|()| without_request(&host, containerd.cri()))
        .and_then(|()| of_its_namespace(&host, containerd.cri()))
        .and_then(|()| counted(&host, containerd.cri()));
    if outcome.is_err() {
        eprint!("{}", containerd.log_end());
    }
    let stopped = containerd.stop();
    finish(host, outcome.and(stopped))
}

pub(super) fn image_name() -> String {
    format!("docker.io/library/{}", image::NAME)
}

fn start(host: &Host, cri: Cri<'_>, pod: &Pod, name: &str) -> Result<Container> {
    let id = cri.start(pod, name, &image_name(), &COMMAND)?;
    let container = Container { name: name.to_owned(), init_pid: cri.init_pid(&id)?, id };
    wait_for_lease(host, &container)?;
    Ok(container)
}

pub(super) fn with_shares(host: &Host, cri: Cri<'_>) -> Result<()> {
    let pod = cri.run_pod("shared", HANDLER, &ANNOTATIONS)?;
    let leases = host.leases()?;
    ensure(leases.is_empty(), || format!("the sandbox has a lease: {leases:?}"))?;
    let web = start(host, cri, &pod, "web")?;
    let other = start(host, cri, &pod, "other")?;
    for (container, permille) in [(&web, 200), (&other, 300)] {
        let granted = host.lease_of(container)?.fraction_permille;
        ensure(granted == permille, || format!("{} was granted {granted} permille", container.name))?;
    }
    let called = host.lease_of(&web)?.pod.map(|pod| pod.to_string());
    ensure(called.as_deref() == Some("default/shared/web"), || format!("the container is called {called:?}"))?;
    check_shares(host, &[(&web, 0.2), (&other, 0.3)])?;
    let greedy = ["gpool-tenant", "--nvml", "--kernel-us", "300", "--seconds", "1"];
    let seen = report(&cri.exec(&web.id, &greedy)?)?;
    let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
    ensure(totals == (2 << 30, 2 << 30), || format!("what is executed in the pod sees {totals:?} bytes"))?;
    // A kubelet starts a container that has ended anew, under another id.
    web.kill_init()?;
    wait_for_end(host, &web)?;
    // containerd sees the end a moment later than the supervisor; this waits for it.
    cri.stop(&web.id)?;
    cri.remove(&web.id)?;
    let again = start(host, cri, &pod, "web")?;
    cri.stop(&other.id)?;
    wait_for_end(host, &other)?;
    cri.remove_pod(&pod)?;
    wait_for_end(host, &again)?;
    wait_for_room(host)
}

/// On a full GPU the next attempt at a container, which has another id, has the place of the last one, and nobody else has.
fn restarted(host: &Host, cri: Cri<'_>) -> Result<()> {
    let pod = cri.run_pod("full", HANDLER, &[("gpool.io/fraction.web", "0.6"), ("gpool.io/fraction.log", "0.4")])?;
    let web = start(host, cri, &pod, "web")?;
    start(host, cri, &pod, "log")?;
    web.kill_init()?;
    wait_for_end(host, &web)?;
    cri.stop(&web.id)?;
    cri.remove(&web.id)?;
    let other = cri.run_pod("other", HANDLER, &[("gpool.io/fraction", "0.6")])?;
    let said = match cri.start(&other, "web", &image_name(), &COMMAND) {
        Ok(_) => return Err(Failure::new("another pod has the place of a container that comes back".to_owned())),
        Err(failure) => failure.to_string(),
    };
    ensure(said.contains("[GPOOL-E201]"), || format!("another pod on a full GPU: {said}"))?;
    cri.remove_pod(&other)?;
    let again = start(host, cri, &pod, "web")?;
    cri.remove_pod(&pod)?;
    wait_for_end(host, &again)?;
    wait_for_room(host)
}

/// As with an init container, for which the pod's annotation holds as well: what is kept of it is for the rest of its pod.
fn one_after_the_other(host: &Host, cri: Cri<'_>) -> Result<()> {
    let pod = cri.run_pod("staged", HANDLER, &[("gpool.io/fraction", "0.6")])?;
    let first = start(host, cri, &pod, "first")?;
    first.kill_init()?;
    wait_for_end(host, &first)?;
    cri.stop(&first.id)?;
    let web = start(host, cri, &pod, "web")?;
    cri.remove_pod(&pod)?;
    wait_for_end(host, &web)?;
    wait_for_room(host)
}

/// A pod of which only one container shall have a share, and one of which a container has something else than the pod.
fn for_one_only(host: &Host, cri: Cri<'_>) -> Result<()> {
    // What is for the whole pod asks for nothing by itself.
    let pod = cri.run_pod("one", HANDLER, &[("gpool.io/fraction.web", "0.3"), ("gpool.io/memory", CAP)])?;
    let log = cri.start(&pod, "log", &image_name(), &["sleep", "1000"])?;
    let seen = cri.exec(&log, &["ls", "/dev"])?;
    ensure(!seen.contains("gpool") && !seen.contains("nvidia"), || format!("log, which asks for nothing, has {seen}"))?;
    let web = start(host, cri, &pod, "web")?;
    let leases = host.leases()?;
    ensure(leases.len() == 1, || format!("not only web has a lease: {leases:?}"))?;
    cri.remove_pod(&pod)?;
    wait_for_end(host, &web)?;
    wait_for_room(host)?;

    let all = [("gpool.io/fraction", "0.3"), ("gpool.io/fraction.web", ""), ("gpool.io/mode.web", "exclusive")];
    let pod = cri.run_pod("replaced", HANDLER, &all)?;
    let id = cri.start(&pod, "web", &image_name(), &["sleep", "1000"])?;
    let web = Container { name: "web".to_owned(), init_pid: cri.init_pid(&id)?, id };
    let mechanism = host.lease_of(&web)?.mechanism;
    ensure(mechanism == Mechanism::Exclusive, || format!("web asked for whole GPUs and has mode={mechanism}"))?;
    cri.remove_pod(&pod)?;
    wait_for_end(host, &web)?;
    wait_for_room(host)
}

/// What a kubelet would show as the container's state.
fn refused(host: &Host, cri: Cri<'_>) -> Result<()> {
    for (value, sentence, code) in [
        (("gpool.io/fraction", "3"), "a share lies between 0.01 and 1", "[GPOOL-E101]"),
        (("gpool.io/fractoin", "0.3"), "did you mean", "[GPOOL-E102]"),
    ] {
        let pod = cri.run_pod("refused", HANDLER, &[value])?;
        let said = match cri.start(&pod, "web", &image_name(), &COMMAND) {
            Ok(_) => return Err(Failure::new(format!("{value:?} was started"))),
            Err(failure) => failure.to_string(),
        };
        ensure(said.contains(sentence) && said.contains(code), || format!("{value:?}: {said}"))?;
        cri.remove_pod(&pod)?;
    }
    wait_for_room(host)
}

/// A container of the same handler that asks for nothing, and of containerd's own with annotations that it does not pass on.
fn without_request(host: &Host, cri: Cri<'_>) -> Result<()> {
    for (handler, annotations) in [(HANDLER, &[][..]), ("", &ANNOTATIONS[..])] {
        let pod = cri.run_pod("plain", handler, annotations)?;
        let id = cri.start(&pod, "web", &image_name(), &["sleep", "1000"])?;
        let seen = cri.exec(&id, &["ls", "/dev"])?;
        let leases = host.leases()?;
        let has_any = seen.contains("gpool") || seen.contains("nvidia") || !leases.is_empty();
        ensure(!has_any, || format!("handler {handler:?} without a request has {seen} and {leases:?}"))?;
        cri.remove_pod(&pod)?;
    }
    Ok(())
}

/// Where the host says so the pod's namespace is its team, and no other is.
fn of_its_namespace(host: &Host, cri: Cri<'_>) -> Result<()> {
    reload_with(host, "[policy]\nnamespace_teams = true\n")?;
    let pod = cri.run_pod("named", HANDLER, &[("gpool.io/fraction", "0.3")])?;
    let web = start(host, cri, &pod, "web")?;
    let team = host.lease_of(&web)?.team;
    ensure(team.as_deref() == Some(NAMESPACE), || format!("a pod of {NAMESPACE} is of the team {team:?}"))?;
    let other = cri.run_pod("other", HANDLER, &[("gpool.io/fraction", "0.3"), ("gpool.io/team", "vision")])?;
    is_not_allowed(cri, &other, &["vision", NAMESPACE])?;
    [&pod, &other].into_iter().try_for_each(|pod| cri.remove_pod(pod))?;
    wait_for_end(host, &web)
}

/// The pod's container is refused, in words that have all of these.
fn is_not_allowed(cri: Cri<'_>, pod: &Pod, parts: &[&str]) -> Result<()> {
    let said = match cri.start(pod, "web", &image_name(), &COMMAND) {
        Ok(_) => return Err(Failure::new(format!("a pod was started, and should have been told of {parts:?}"))),
        Err(failure) => failure.to_string(),
    };
    let is_told = said.contains("[GPOOL-E105]") && parts.iter().all(|part| said.contains(part));
    ensure(is_told, || format!("a pod that should have been told of {parts:?}: {said}"))
}

/// What the device plugin says of a container is believed under its seal alone; and where the host says so pods have nothing else.
fn counted(host: &Host, cri: Cri<'_>) -> Result<()> {
    let seal = host.client().get::<Counts>("/v1/counts")?.seal;
    let seal = seal.ok_or_else(|| Failure::new("root is not told the seal".to_owned()))?;
    let another = Seal::of(7).put_on("percent=30");
    for forged in ["percent=30", &another] {
        let pod = cri.run_pod("forged", HANDLER, &[(PERCENT_ANNOTATION, forged)])?;
        is_not_allowed(cri, &pod, &["gpool-device-plugin", "resource limits"])?;
        cri.remove_pod(&pod)?;
    }
    reload_with(host, "[policy]\ncounted_pods = true\n")?;
    let pod = cri.run_pod("uncounted", HANDLER, &[("gpool.io/fraction", "0.3")])?;
    is_not_allowed(cri, &pod, &["counted_pods", "gpool.io/percent"])?;
    cri.remove_pod(&pod)?;

    let pod = cri.run_pod("counted", HANDLER, &[(PERCENT_ANNOTATION, &seal.put_on("percent=30"))])?;
    let web = start(host, cri, &pod, "web")?;
    let lease = host.lease_of(&web)?;
    let granted = (lease.fraction_permille, lease.resource);
    let want = (300, Some(CountedResource::Percent(30)));
    ensure(granted == want, || format!("what was counted was granted as {granted:?}"))?;
    reload_with(host, "[policy]\ncounted_pods = true\ncounted_memory_percent = 100\n")?;
    let sealed = seal.put_on("percent=10");
    let greedy = cri.run_pod("greedy", HANDLER, &[(PERCENT_ANNOTATION, &sealed), ("gpool.io/memory", "11%")])?;
    is_not_allowed(cri, &greedy, &["memory=11.0%", "gpool.io/percent: 10"])?;
    cri.remove_pod(&greedy)?;
    let modest = cri.run_pod("modest", HANDLER, &[(PERCENT_ANNOTATION, &sealed), ("gpool.io/memory", "10%")])?;
    let its = start(host, cri, &modest, "web")?;
    cri.remove_pod(&modest)?;
    wait_for_end(host, &its)?;
    cri.remove_pod(&pod)?;
    wait_for_end(host, &web)
}
