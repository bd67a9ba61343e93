//! A board that is divided: what may lie where, and what an instance is.

use gpool_device_model::{Device, DeviceParameters, MIG_MODELS, MigModel, MigRefusal, MigState, Ticket};

fn on() -> MigState {
    let mut mig = MigState::default();
    assert_eq!(mig.set(true, false), Ok(true));
    mig
}

#[test]
fn instances_lie_where_the_board_lets_them() {
    let model = MigModel::named("a100-80gb").unwrap();
    let mut mig = on();
    assert_eq!(mig.create(model, 9, Some(4)), Ok(2), "3g.40gb in the upper half");
    assert_eq!(mig.create(model, 9, Some(2)), Err(MigRefusal::Invalid));
    assert_eq!(mig.create(model, 9, Some(4)), Err(MigRefusal::NoRoom));
    assert_eq!(mig.create(model, 14, None), Ok(3), "2g.20gb at 0");
    assert_eq!(mig.create(model, 0, None), Err(MigRefusal::NoRoom));
    assert_eq!(mig.create(model, 99, None), Err(MigRefusal::Invalid));
    assert_eq!(mig.create(model, 14, None), Ok(4));
    assert_eq!(mig.create(model, 19, None), Err(MigRefusal::NoRoom), "all seven compute slices are taken");
    assert_eq!(mig.set(false, false), Err(MigRefusal::InUse));
    mig.set_compute(4, true).unwrap();
    assert_eq!(mig.destroy(4), Err(MigRefusal::InUse));
    mig.set_compute(4, false).unwrap();
    mig.destroy(4).unwrap();
    assert_eq!(mig.destroy(4), Err(MigRefusal::Invalid));
    assert_eq!(mig.create(model, 19, None), Ok(9));
}

#[test]
fn each_board_has_as_many_of_each_profile_as_it_says() {
    for model in &MIG_MODELS {
        for profile in model.profiles {
            let mut mig = on();
            let made = (0..16).map_while(|_| mig.create(model, profile.id, None).ok()).collect::<Vec<_>>();
            assert_eq!(made.len(), usize::from(profile.most), "{} {}", model.name, profile.name);
            assert!(made.windows(2).all(|pair| pair[0] < pair[1]) && made.iter().all(|id| *id < 15), "{made:?}");
        }
    }
}

#[test]
fn a_board_in_use_is_divided_later_and_one_without_mig_never() {
    let mut mig = MigState::default();
    assert_eq!(mig.set(true, true), Ok(false));
    assert!(!mig.is_on && mig.is_pending);
    assert_eq!(mig.create(&MIG_MODELS[0], 14, None), Err(MigRefusal::NotSupported));
    assert!(DeviceParameters::standard(0).mig_model().is_none());
}

#[test]
fn an_instance_is_a_device_of_its_size_and_speed() {
    let model = MigModel::named("A100-80GB").unwrap();
    let board = DeviceParameters::standard(3).with_model(model);
    let instance = board.of_instance(model, model.profile(9).unwrap(), 2);
    assert_eq!(instance.uuid, "MIG-51313131-0002-4000-8000-000000000003");
    assert_eq!((instance.memory_bytes, instance.multiprocessors), (40192 << 20, 42));
    let mut device = Device::new(instance, 0);
    let context = device.create_context(0, 7, "/a").unwrap();
    device.submit_kernel(0, context, 3_000);
    device.advance(6_999);
    assert_eq!(device.last_completed(context), Ticket(0));
    device.advance(7_000);
    assert_eq!(device.last_completed(context), Ticket(1), "three sevenths of the speed");
    assert!(!device.close(8_000), "somebody is there");
    let other = device.create_context(8_000, 8, "/b").unwrap();
    device.fault_process(8_500, 8);
    assert!(device.has_context(context) && !device.has_context(other), "a process's own fault is its own");
    device.fault(9_000);
    assert!(!device.has_context(context) && device.memory_used() == 0);
    assert!(device.close(9_000) && device.create_context(9_000, 7, "/a").is_err());
}
