//! What is offered to the kubelet, and under which name.

use crate::kubelet::{Device, Devices, HEALTHY, UNHEALTHY};
use gpool_protocol::{Countable, CountedResource, Counts, PERCENT_ANNOTATION, Seal, instance_annotation};
use std::collections::BTreeSet;

/// Something that pods can ask for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offered {
    /// Hundredths of GPUs.
    Percent,
    /// MIG instances of this profile.
    Instances(String),
}

impl Offered {
    /// As a pod asks for it. Names of resources have no plus sign: a dot stands for it, as in those of NVIDIA's own plugin.
    pub fn resource(&self) -> String {
        format!("gpool.io/{}", self.name())
    }

    /// The name of its socket.
    pub fn endpoint(&self) -> String {
        format!("gpool-{}.sock", self.name())
    }

    fn name(&self) -> String {
        match self {
            Offered::Percent => "percent".to_owned(),
            Offered::Instances(profile) => format!("mig-{}", profile.replace('+', ".")),
        }
    }

    /// What `count` of it are for a container: the annotation that says so, under the host's seal. A supervisor that tells none looks
    /// for none, or refuses what has none, which is shown. What no container can have is said as well, since its
    /// refusal by gpool-runtime is tried again and shown, where one by the plugin would end the pod.
    pub fn annotation(&self, count: usize, seal: Option<&Seal>) -> (String, String) {
        let (key, counted) = match (self, count) {
            (Offered::Percent, _) => (PERCENT_ANNOTATION.to_owned(), format!("percent={count}")),
            (Offered::Instances(profile), 1) => {
                (instance_annotation(profile), CountedResource::Instance(profile.clone()).to_string())
            }
            (Offered::Instances(profile), _) => (instance_annotation(profile), format!("mig={profile}*{count}")),
        };
        (key, seal.map_or(counted.clone(), |seal| seal.put_on(&counted)))
    }
}

/// Everything that is offered, with how much there is.
pub fn offers(counts: &Counts) -> Vec<(Offered, Countable)> {
    let instances = counts.instances.iter().map(|its| (Offered::Instances(its.profile.clone()), its.count));
    // A host whose GPUs are all divided has no hundredths.
    let percent = (counts.percent.all > 0).then_some((Offered::Percent, counts.percent));
    percent.into_iter().chain(instances).collect()
}

/// How much there is of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// So much, by the supervisor's word.
    Counted(Countable),
    /// The supervisor has been silent for too long: how much of it may be given out nobody knows.
    Unknown {
        /// What there was in all.
        all: u32,
    },
}

impl Stock {
    /// What there is in all.
    pub fn all(&self) -> u32 {
        match self {
            Stock::Counted(count) => count.all,
            Stock::Unknown { all } => *all,
        }
    }

    /// Whether it matters which ones containers have.
    pub fn depends_on_held(&self) -> bool {
        matches!(self, Stock::Counted(count) if count.available < count.all)
    }

    /// What the kubelet is told where containers have `held`.
    ///
    /// Without the supervisor all devices are unhealthy, also those that containers have. Were these healthy, the node would look full:
    /// a cluster ends a pod of a full node for one of a higher priority, which then starts no more than the one before it, and the next
    /// pod would be ended for it. A node that has nothing is left alone. Containers that run, or that a kubelet starts again, are not
    /// asked for the health of their devices. A kubelet that is itself started anew asks for it where it takes in a pod of which a
    /// container does not run just then, as an init container that is over (kubernetes/kubernetes#138446), and ends the pod. It does
    /// so before any plugin has presented itself as well, so that healthy devices would save few of those.
    pub fn devices(&self, held: &BTreeSet<String>) -> Devices {
        match *self {
            Stock::Unknown { all } => devices(Countable { all, available: 0 }, &BTreeSet::new()),
            Stock::Counted(count) => devices(count, held),
        }
    }
}

/// The kubelet counts devices. Which of them a container is given says nothing: where it goes is the supervisor's choice. Those that
/// containers have, `held`, are healthy whatever may be given out; then as many others as may.
fn devices(count: Countable, held: &BTreeSet<String>) -> Devices {
    let ids: Vec<String> = (0..count.all).map(|number| number.to_string()).collect();
    let kept = ids.iter().filter(|id| held.contains(*id)).count();
    let mut free = (count.available as usize).saturating_sub(kept);
    let device = |id: String| {
        let is_healthy = held.contains(&id) || free > 0;
        if is_healthy && !held.contains(&id) {
            free -= 1;
        }
        Device { id, health: (if is_healthy { HEALTHY } else { UNHEALTHY }).to_owned() }
    };
    Devices { devices: ids.into_iter().map(device).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::InstanceCount;

    #[test]
    fn names_are_such_as_kubernetes_takes() {
        let all = [Offered::Percent, Offered::Instances("1g.10gb+me".into()), Offered::Instances("1g.24gb-me".into())];
        let names = all.each_ref().map(Offered::resource);
        assert_eq!(names, ["gpool.io/percent", "gpool.io/mig-1g.10gb.me", "gpool.io/mig-1g.24gb-me"]);
        assert_eq!(all[1].endpoint(), "gpool-mig-1g.10gb.me.sock");
    }

    #[test]
    fn what_a_container_is_given_is_what_it_asks_the_supervisor_for() {
        let said = |offered: &Offered, count| {
            let (key, value) = offered.annotation(count, None);
            let seal = Seal::of(7);
            assert_eq!(offered.annotation(count, Some(&seal)), (key.clone(), seal.put_on(&value)));
            (key, CountedResource::parse(&value))
        };
        assert_eq!(said(&Offered::Percent, 30), (PERCENT_ANNOTATION.to_owned(), Some(CountedResource::Percent(30))));
        assert_eq!(said(&Offered::Percent, 1601), (PERCENT_ANNOTATION.to_owned(), None));
        let instances = Offered::Instances("1g.10gb+me".into());
        let one = CountedResource::Instance("1g.10gb+me".into());
        let key = "gpool.io/resource-mig.1g.10gb.me".to_owned();
        assert_eq!(said(&instances, 1), (key.clone(), Some(one)), "two profiles are two keys");
        assert_eq!(said(&instances, 2), (key, None));
    }

    #[test]
    fn what_is_not_to_be_given_out_is_unhealthy_but_where_somebody_has_it() {
        let healthy = |all, available, held: &[&str]| {
            let held = held.iter().map(|id| (*id).to_owned()).collect();
            let list = devices(Countable { all, available }, &held).devices;
            assert_eq!(list.len(), all as usize);
            let is_healthy = |device: &&Device| device.health == HEALTHY;
            list.iter().filter(is_healthy).map(|device| device.id.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(healthy(3, 2, &[]), "0 1");
        assert_eq!(healthy(5, 3, &["3", "4"]), "0 3 4");
        assert_eq!(healthy(5, 5, &["3", "4"]), "0 1 2 3 4");
        assert_eq!(healthy(5, 0, &["3", "4"]), "3 4", "who has it keeps it, and nobody else comes");
        assert_eq!(healthy(3, 2, &["7"]), "0 1", "of a GPU that is no more");
        assert_eq!(healthy(0, 0, &[]), "");
    }

    #[test]
    fn nothing_is_offered_that_nobody_counts() {
        let held = BTreeSet::from(["3".to_owned()]);
        let healthy = |stock: Stock| {
            let list = stock.devices(&held).devices;
            assert_eq!(list.len(), stock.all() as usize);
            list.iter().filter(|device| device.health == HEALTHY).count()
        };
        let counted = |available| Stock::Counted(Countable { all: 5, available });
        assert_eq!([5, 2, 0].map(|available| healthy(counted(available))), [5, 2, 1]);
        assert_eq!([5, 2, 0].map(|available| counted(available).depends_on_held()), [false, true, true]);
        let unknown = Stock::Unknown { all: 5 };
        assert_eq!((healthy(unknown), unknown.depends_on_held()), (0, false), "no pod is ended for another one");
    }

    #[test]
    fn a_host_offers_what_it_has() {
        let count = Countable { all: 7, available: 1 };
        let mut counts = Counts { percent: Countable { all: 100, available: 60 }, instances: Vec::new(), seal: None };
        assert_eq!(offers(&counts), [(Offered::Percent, counts.percent)]);
        counts.instances.push(InstanceCount { profile: "1g.10gb".into(), count });
        counts.percent = Countable::default();
        assert_eq!(offers(&counts), [(Offered::Instances("1g.10gb".into()), count)]);
        assert_eq!(offers(&Counts::default()), []);
    }
}
