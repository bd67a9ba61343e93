//! What is offered to the kubelet, and under which name.

use crate::kubelet::{Device, Devices, HEALTHY, UNHEALTHY};
use gpool_protocol::{Countable, CountedResource, Counts};
use tonic::Status;

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

    /// What `count` of it are for a container.
    ///
    /// # Errors
    /// Nobody can have that much of it.
    pub fn counted(&self, count: usize) -> Result<CountedResource, Status> {
        let resource = match (self, count) {
            (Offered::Percent, _) => CountedResource::parse(&format!("percent={count}")),
            (Offered::Instances(profile), 1) => Some(CountedResource::Instance(profile.clone())),
            (Offered::Instances(_), _) => None,
        };
        resource.ok_or_else(|| {
            let most = match self {
                Offered::Percent => "1600, which is sixteen GPUs",
                Offered::Instances(_) => "one",
            };
            Status::invalid_argument(format!("a container has no {count} of {}: at most {most}", self.resource()))
        })
    }
}

/// Everything that is offered, with how much there is.
pub fn offers(counts: &Counts) -> Vec<(Offered, Countable)> {
    let instances = counts.instances.iter().map(|its| (Offered::Instances(its.profile.clone()), its.count));
    // A host whose GPUs are all divided has no hundredths.
    let percent = (counts.percent.all > 0).then_some((Offered::Percent, counts.percent));
    percent.into_iter().chain(instances).collect()
}

/// The kubelet counts devices. Which of them a container is given says nothing: where it goes is the supervisor's choice.
pub fn devices(count: Countable) -> Devices {
    let health = |number| if number < count.available { HEALTHY } else { UNHEALTHY };
    let device = |number: u32| Device { id: number.to_string(), health: health(number).to_owned() };
    Devices { devices: (0..count.all).map(device).collect() }
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
        assert_eq!(Offered::Percent.counted(30).unwrap(), CountedResource::Percent(30));
        let instances = Offered::Instances("1g.10gb+me".into());
        assert_eq!(instances.counted(1).unwrap(), CountedResource::Instance("1g.10gb+me".into()));
        let told = |offered: &Offered, count| offered.counted(count).unwrap_err().message().to_owned();
        assert!(told(&Offered::Percent, 1601).contains("no 1601 of gpool.io/percent: at most 1600"));
        assert!(told(&instances, 2).contains("no 2 of gpool.io/mig-1g.10gb.me: at most one"));
    }

    #[test]
    fn what_is_not_to_be_given_out_is_unhealthy() {
        let list = devices(Countable { all: 3, available: 2 }).devices;
        let told: Vec<_> = list.iter().map(|device| (device.id.as_str(), device.health.as_str())).collect();
        assert_eq!(told, [("0", HEALTHY), ("1", HEALTHY), ("2", UNHEALTHY)]);
        assert_eq!(devices(Countable::default()).devices, []);
    }

    #[test]
    fn a_host_offers_what_it_has() {
        let count = Countable { all: 7, available: 1 };
        let mut counts = Counts { percent: Countable { all: 100, available: 60 }, instances: Vec::new() };
        assert_eq!(offers(&counts), [(Offered::Percent, counts.percent)]);
        counts.instances.push(InstanceCount { profile: "1g.10gb".into(), count });
        counts.percent = Countable::default();
        assert_eq!(offers(&counts), [(Offered::Instances("1g.10gb".into()), count)]);
        assert_eq!(offers(&Counts::default()), []);
    }
}
