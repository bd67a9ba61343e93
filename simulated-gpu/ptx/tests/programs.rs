//! Small kernels, executed.

use gpool_simulated_ptx::{Fault, Hardware, Launch, Memory, Program};
use std::collections::BTreeMap;

/// Memory from 4096 to 8192.
#[derive(Default)]
struct Page(BTreeMap<u64, u64>);

impl Page {
    fn has(address: u64) -> Option<()> {
        (4096..8192).contains(&address).then_some(())
    }
}

impl Memory for Page {
    fn load(&mut self, address: u64, _bytes: usize) -> Option<u64> {
        Self::has(address).map(|()| self.0.get(&address).copied().unwrap_or(0))
    }

    fn store(&mut self, address: u64, _bytes: usize, value: u64) -> Option<()> {
        Self::has(address)?;
        self.0.insert(address, value);
        Some(())
    }
}

fn program(body: &str) -> Program {
    let text = format!(
        ".version 6.0 .target sm_50\n.visible .entry one(.param .u64 out, .param .u32 n)\n{{ .reg .pred %p; .reg .u32 %a, %b;
         .reg .u64 %o, %w, %v; .reg .f32 %f; .reg .f64 %d;\n{body}\nret; }}"
    );
    Program::read(&text, "one").unwrap()
}

const HARDWARE: Hardware = Hardware { multiprocessors: 2, wrong: None };

fn run(program: &Program, n: u64, hardware: Hardware) -> Result<Page, Fault> {
    let mut page = Page::default();
    let launch = Launch { blocks: 2, threads: 64, parameters: vec![4096, n] };
    program.run(&launch, hardware, &mut page).map(|()| page)
}

/// Where each of 128 threads has 8 bytes.
const PLACE: &str = "mov.u32 %a, %ctaid.x; mov.u32 %b, %ntid.x; mad.lo.u32 %a, %a, %b, %tid.x; mul.wide.u32 %w, %a, 8;
    ld.param.u64 %o, [out]; add.u64 %o, %o, %w;";

#[test]
fn each_thread_writes_its_own_number_and_loops_end() {
    let body = format!(
        "{PLACE} mov.u64 %v, 0; ld.param.u32 %b, [n]; cvt.u64.u32 %w, %a;
         again: add.u64 %v, %v, %w; sub.u32 %b, %b, 1; setp.ne.u32 %p, %b, 0; @%p bra again; st.global.u64 [%o], %v;"
    );
    let page = run(&program(&body), 3, HARDWARE).unwrap();
    assert_eq!(page.0, (0..128).map(|thread| (4096 + 8 * thread, 3 * thread)).collect());
}

#[test]
fn a_multiprocessor_that_errs_does_so_in_its_own_blocks_alone() {
    let body = format!(
        "{PLACE} mov.f32 %f, 0f3F800000; ld.param.u32 %b, [n];
         again: fma.rn.f32 %f, %f, 0f3F000000, 0f3F800001; sub.u32 %b, %b, 1; setp.ne.u32 %p, %b, 0; @%p bra again;
         mov.b32 %b, %f; cvt.u64.u32 %w, %b; st.global.u64 [%o], %w;"
    );
    let program = program(&body);
    let (right, wrong) = (run(&program, 7, HARDWARE).unwrap(), Hardware { wrong: Some(1), ..HARDWARE });
    let wrong = run(&program, 7, wrong).unwrap();
    let others: Vec<u64> =
        (0..128).filter(|thread| right.0[&(4096 + 8 * thread)] != wrong.0[&(4096 + 8 * thread)]).collect();
    assert_eq!(others, [69, 101], "lane 5 of both warps of block 1");
    assert!(right.0.values().all(|value| *value == right.0[&4096]));
}

#[test]
fn what_cannot_be_done_is_said() {
    assert_eq!(run(&program("mov.u64 %o, 16; ld.global.u64 %v, [%o];"), 1, HARDWARE).err(), Some(Fault::Address(16)));
    assert_eq!(
        run(&program("ld.param.u64 %o, [out]; ld.global.u64 %v, [%o+4];"), 1, HARDWARE).err(),
        Some(Fault::Address(4100))
    );
    let body = "mov.u32 %a, %laneid; setp.ne.u32 %p, %a, 0; @!%p bra end; mov.u32 %b, 1; end: mov.u32 %b, 2;";
    assert_eq!(run(&program(body), 1, HARDWARE).err(), Some(Fault::Divergence));
    let launch = Launch { blocks: 1, threads: 33, parameters: vec![4096, 1] };
    assert_eq!(program("").run(&launch, HARDWARE, &mut Page::default()), Err(Fault::Launch));
    for body in
        ["sin.approx.f32 %f, %f;", "mov.u32 %nobody, 1;", "bra nowhere;", "add.s32 %a, %a, 1;", "@%p mov.u32 %a, 1;"]
    {
        let text = format!(".entry one() {{ .reg .u32 %a; .reg .f32 %f; .reg .pred %p; {body} ret; }}");
        assert!(Program::read(&text, "one").is_err(), "{body}");
    }
    assert!(Program::read(".entry other() { ret; }", "one").is_err());
}
