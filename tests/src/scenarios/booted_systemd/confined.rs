//! The smaller supervisor of `confined.conf`, which has a mount namespace of its own and has its regions mounted.

use super::{meanwhile, unit};
use crate::booted::{Booted, Share, Tenants};
use crate::failure::{Context, Result, ensure};

const MOUNTER: &str = "gpool-regions.service";
/// `systemd-analyze security` of the confined supervisor and of its mounter, in tenths.
const EXPOSURE: u32 = 33;
/// Where the drop-in is shipped, and where its first lines say it goes.
const SHIPPED: &str = "/usr/share/gpool/confined.conf";
const DIRECTORY: &str = "/etc/systemd/system/gpool-supervisor.service.d";
/// CAP_SYS_ADMIN alone, as /proc shows it.
const MOUNTING: u64 = 1 << 21;
const GUEST: Share = ("guest", "0.2", 200);

/// Confines a supervisor under running containers, starts and ends another, and takes it all back.
pub fn confined(booted: &Booted, tenants: &mut Tenants<'_>) -> Result<()> {
    exposure(booted)?;
    let leases = tenants.leases()?;
    let pid = unit::property(booted, "MainPID")?;
    let place = commands(booted)?;
    ensure(place.contains(DIRECTORY), || format!("{SHIPPED} says {place}"))?;
    booted.sh(&place)?;
    let pid = unit::wait_until_ready(booted, &pid)?;
    is_as_promised(booted, &pid)?;
    tenants.go_on(Some(&leases)).context("after the supervisor was confined")?;
    meanwhile::a_tenant_dies_and_is_impersonated(booted, tenants).context("with a confined supervisor")?;
    tenants.add(GUEST).context("a region that the mounter mounts")?;
    mounter_alone_mounts(booted)?;
    // It keeps nothing, so the next question starts another.
    booted.sh(&format!("systemctl kill --signal=KILL {MOUNTER}"))?;
    tenants.restart(GUEST.0).context("after the mounter was killed")?;
    tenants.go_on(None).context("with a confined supervisor")?;
    let pid_before = unit::property(booted, "MainPID")?;
    booted.sh("systemctl restart gpool-supervisor")?;
    let pid = unit::wait_until_ready(booted, &pid_before)?;
    tenants.go_on(None).context("after a restart of a confined supervisor")?;
    tenants.stop(GUEST.0)?;
    regions_are(booted, leases.len())?;
    without_its_mounter(booted)?;
    booted.sh(&format!("rm -r {DIRECTORY} && systemctl daemon-reload && systemctl restart gpool-supervisor"))?;
    unit::wait_until_ready(booted, &pid)?;
    booted.sh("systemctl stop gpool-regions.service gpool-regions.socket")?;
    tenants.go_on(Some(&leases)).context("after the drop-in was taken away")
}

/// The commands that stand in the drop-in, for whoever wants it.
fn commands(booted: &Booted) -> Result<String> {
    booted.sh(&format!("sed -n '/^# Not/q; s/^#     //p' {SHIPPED}"))
}

/// What both units expose. Under other names than those that the simulated GPU changes.
fn exposure(booted: &Booted) -> Result<()> {
    booted.sh(&format!(
        "mkdir -p /tmp/confined.service.d && cp {SHIPPED} /tmp/confined.service.d/ && \
         cp /usr/lib/systemd/system/gpool-supervisor.service /tmp/confined.service && \
         cp /usr/lib/systemd/system/{MOUNTER} /tmp/mounter.service && \
         for unit in confined mounter; do \
             systemd-analyze security --offline=true --threshold={EXPOSURE} /tmp/$unit.service; done"
    ))?;
    let whole = booted.run(&[
        "systemd-analyze",
        "security",
        "--offline=true",
        &format!("--threshold={EXPOSURE}"),
        "/usr/lib/systemd/system/gpool-supervisor.service",
    ])?;
    ensure(!whole.status.success(), || {
        "the unit without the drop-in exposes as little: the drop-in is for nothing".into()
    })
}

/// It sees a read-only host without homes, through a mount namespace of its own, and has no call that mounts.
fn is_as_promised(booted: &Booted, pid: &str) -> Result<()> {
    let namespaces = booted.sh(&format!("readlink /proc/1/ns/mnt /proc/{pid}/ns/mnt | sort -u | wc -l"))?;
    ensure(namespaces == "2", || "it is in the host's mount namespace".to_owned())?;
    unit::is_bounded_to(booted, pid, unit::CAPABILITIES)?;
    let root =
        booted.sh(&format!("awk '$5 == \"/\" {{ split($6, flags, \",\"); print flags[1] }}' /proc/{pid}/mountinfo"))?;
    ensure(root == "ro", || format!("its root is mounted {root}"))?;
    booted.sh(&format!("test -z \"$(ls -A /proc/{pid}/root/root)\" && test -n \"$(ls -A /root)\""))?;
    let calls = unit::property(booted, "SystemCallFilter")?;
    let has = |call: &str| calls.split_whitespace().any(|allowed| allowed == call);
    ensure(has("openat") && !has("mount") && !has("umount2") && !has("move_mount"), || format!("it may call {calls}"))
}

/// The mounter is in the host's namespace, with one capability; the region's mount is seen on both sides.
fn mounter_alone_mounts(booted: &Booted) -> Result<()> {
    let pid = booted.sh(&format!("systemctl show --value --property MainPID {MOUNTER}"))?;
    ensure(pid != "0", || format!("{MOUNTER} was never asked"))?;
    let namespaces = booted.sh(&format!("readlink /proc/1/ns/mnt /proc/{pid}/ns/mnt | sort -u | wc -l"))?;
    ensure(namespaces == "1", || "the mounter would mount where no engine looks".to_owned())?;
    unit::is_bounded_to(booted, &pid, MOUNTING)?;
    regions_are(booted, 3)?;
    // What it is asked for and has not to do, it says.
    for (question, answer) in [
        ("mount ../../../etc", "that is no lease"),
        ("mount $(ls /run/gpool/leases | head -1)", "mounted there already"),
        ("unmount 01JD8ZQ3W4X5Y6Z7A8B9C0D1E2", "done"),
        ("remount", "the question is neither"),
    ] {
        let said = booted.sh(&format!(
            "echo \"{question}\" | perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(\"/run/gpool/regions.sock\"); \
             print $s <STDIN>; $s->shutdown(1); print <$s>'"
        ))?;
        ensure(said.contains(answer), || format!("asked to {question:?} it said {said:?}"))?;
    }
    booted.sh("test $(stat -c %a:%u /run/gpool/regions.sock) = 600:0").map(drop)
}

/// So many regions are mounted, in the host's namespace and in the supervisor's. There each may be seen twice: what may be
/// written to is mounted over itself.
fn regions_are(booted: &Booted, count: usize) -> Result<()> {
    let pid = unit::property(booted, "MainPID")?;
    for process in ["1", &pid] {
        let mounted = format!("grep -o ' /run/gpool/leases/[^ ]*/region ' /proc/{process}/mountinfo | sort -u | wc -l");
        booted
            .wait_until(&format!("test $({mounted}) = {count}"))
            .context(format!("{count} regions are to be mounted for process {process}"))?;
    }
    Ok(())
}

/// A supervisor that can neither mount nor ask does not start, and says why.
fn without_its_mounter(booted: &Booted) -> Result<()> {
    // Whoever asks on the supervisor's socket meanwhile would start it, and with it what it requires.
    let alone = "systemctl stop gpool-supervisor.service gpool-supervisor.socket && \
                 systemctl stop gpool-regions.socket gpool-regions.service && \
                 unshare --mount --propagation slave /usr/sbin/gpool-supervisor";
    let ended = booted.run(&["sh", "-c", alone])?;
    let said = crate::host::text(&ended.stderr);
    ensure(!ended.status.success() && said.contains("start gpool-regions.socket"), || {
        format!("without its mounter it ended with {} and said {said}", ended.status)
    })
}
