//! Programs in C, compiled and run against members in this process.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use squall::{Config, Node, ServeOptions};

#[derive(Default)]
struct Counters(BTreeMap<String, i64>);

#[squall::service(json, schema = "counters", version = 1)]
impl Counters {
    #[command]
    fn add(&mut self, name: String, amount: i64) -> i64 {
        let sum = self.0.entry(name).or_default();
        *sum += amount;
        *sum
    }

    #[query]
    fn get(&self, name: String) -> Option<i64> {
        self.0.get(&name).copied()
    }
}

/// Starts three members of this cluster.
fn start(file: &Path) -> Vec<Node> {
    let start = |id| {
        let mut node = Node::builder(Config::load_as(file, id).unwrap());
        node.serve_sharded("counters", |_shard| Counters::default(), ServeOptions::default());
        node.start().expect("the view is formed")
    };
    thread::scope(|scope| {
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|node| node.join().expect("it starts")).collect()
    })
}

/// Compiles a program, which finds the library beside this test.
fn compile(source: &str, directory: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let program = directory.join(Path::new(source).file_stem().unwrap());
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_POSIX_C_SOURCE=200809L", "-o"]);
    compiler.arg(&program).arg(here.join(source)).arg("-I").arg(here.join("include"));
    compiler.arg("-L").arg(&libraries).arg("-lsquall_client").arg(format!("-Wl,-rpath,{}", libraries.display()));
    assert!(compiler.status().expect("there is a C compiler").success(), "{source}");
    program
}

fn run(program: &Path, arguments: &[&str]) -> (bool, String) {
    // Cargo's path has a library that an earlier build may have left.
    let output = Command::new(program).args(arguments).env_remove("LD_LIBRARY_PATH").output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

#[test]
fn programs_in_c_call_a_group() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cluster.toml");
    let cluster = format!("c-{}", std::process::id());
    let text = format!("cluster = {cluster:?}\nmembers = [1, 2, 3]\n[groups.counters]\nshards = 2\n");
    fs::write(&file, text).unwrap();
    let nodes = start(&file);
    let file = file.to_str().unwrap();
    let example = compile("examples/counter.c", directory.path());
    let (succeeded, said) = run(&example, &[file, "ann", "5", "7", "-2"]);
    assert!(succeeded && said.ends_with("\n{\"get\":10}\n") && said.contains("call 1: {\"add\":5}\n"), "{said}");
    let (succeeded, said) = run(&example, &[file, "ann", "x"]);
    assert!(!succeeded && said.contains("nothing was applied") && said.contains("line 1 column"), "{said}");
    let (succeeded, said) = run(&compile("tests/border.c", directory.path()), &[file]);
    assert!(succeeded && said == "refused\n", "{said}");
    drop(nodes);
}
