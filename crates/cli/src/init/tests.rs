use super::*;
use meridian_cluster::Topology;

const GOOD: &str = r#"order = "linearizable"
keepers = ["us-a", "eu-a", "us-b"]

[[region]]
name = "us"
nodes = [
  { name = "us-a", address = "10.0.1.1:7000" },
  { name = "us-b", address = "10.0.1.2:7000" },
  { name = "us-c", address = "[2001:db8::1]:7000" },
]

[[region]]
name = "eu"
nodes = [
  { name = "eu-a", address = "eu-a.example:7000" },
]
"#;

/// What is wrong with the answers above, with `new` in the place of `old`.
fn refused(old: &str, new: &str) -> Vec<String> {
    assert!(GOOD.contains(old), "{old}");
    let text = GOOD.replacen(old, new, 1);
    from_file("a.toml", &text).and_then(|answers| made(&answers, None)).unwrap_err()
}

#[test]
fn answers_become_a_cluster() {
    let answers = from_file("a.toml", GOOD).unwrap();
    let (file, warnings) = made(&answers, None).unwrap().unwrap();
    let topology = Topology::new(&file).unwrap();
    assert_eq!(topology.regions.len(), 2);
    assert_eq!(file.nodes[3].groups, ["global", "eu"]);
    assert_eq!(file.order, DeliveryOrder::Linearizable);
    assert_eq!(file.configuration.replicas.iter().collect::<Vec<_>>(), ["eu-a", "us-a", "us-b"]);
    assert!(warnings.len() == 1 && warnings[0].contains("region eu has 1 node"), "{warnings:?}");
    let flag = made(&answers, Some(DeliveryOrder::Sequential)).unwrap().unwrap().0;
    assert_eq!(flag.order, DeliveryOrder::Sequential, "flags win");
}

#[test]
fn flags_name_the_nodes() {
    let flags = ["us=10.0.0.1:1,10.0.0.2:1,10.0.0.3:1", "eu=10.0.1.1:1,10.0.1.2:1"];
    let answers = from_flags(&flags.map(String::from)).unwrap();
    let (file, warnings) = made(&answers, None).unwrap().unwrap();
    let names: Vec<_> = file.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["us-1", "us-2", "us-3", "eu-1", "eu-2"]);
    assert_eq!(file.configuration.replicas.len(), 5);
    assert!(warnings[0].contains("region eu has 2 nodes: that survives 0"), "{warnings:?}");
    let wrong = from_flags(&["us".into(), "eu=h:1".into()]).unwrap_err();
    assert_eq!(wrong, ["--region us: not like us=10.0.1.1:7000,10.0.1.2:7000"]);
    let empty = made(&from_flags(&["us=".into()]).unwrap(), None).unwrap_err();
    assert_eq!(empty, ["--region us=: region us has no nodes"]);
}

#[test]
fn each_mistake_has_its_line_and_its_cause() {
    let cases = [
        ("us-b\", a", "us-a\", a", "line 8: node us-a stands there twice, first in a.toml, line 7"),
        ("10.0.1.2", "10.0.1.1", "line 8: us-a and us-b both listen at 10.0.1.1:7000"),
        ("  { name = \"eu-a\", address = \"eu-a.example:7000\" },\n", "", "region eu has no nodes"),
        ("name = \"eu\"", "name = \"us\"", "region us stands there twice, first in a.toml, line"),
        ("name = \"eu\"", "name = \"global\"", "no region can be called that"),
        (", \"us-b\"]", "]", "line 2: 2 keepers: an odd number is needed"),
        ("\"us-b\"]", "\"ap-a\"]", "line 2: keeper ap-a is none of the nodes"),
        ("\"us-b\"]", "\"us-a\"]", "line 2: keeper us-a stands there twice"),
        ("linearizable", "random", "line 1: there are sequential and linearizable"),
        ("10.0.1.2:7000", "0.0.0.0:7000", "line 8: node us-b: nobody can call"),
        ("10.0.1.2:7000", "10.0.1.2:0", "line 8: node us-b: \"10.0.1.2:0\" names no port"),
        ("10.0.1.2:7000", "10.0.1.2", "line 8: node us-b: \"10.0.1.2\" is not HOST:PORT"),
        ("10.0.1.2:7000", "127.0.0.1:7000", "line 8: node us-b: on another machine"),
        ("us-b\", a", "US B\", a", "line 8: \"US B\": a node's name has"),
        ("us-b\", a", "watcher\", a", "line 8: watcher is what another certificate is called"),
        ("order =", "ordre =", "line 1: unknown field `ordre`"),
        ("address = \"10.0.1.2:7000\"", "adress = \"x:1\"", "line 8: unknown field `adress`"),
        ("order = \"linearizable\"", "order = 7", "line 1: invalid type"),
        ("[[region]]", "[[region", "a.toml, line 4: "),
    ];
    for (old, new, why) in cases {
        let mistakes = refused(old, new);
        assert!(mistakes.iter().any(|mistake| mistake.contains(why)), "{why}: {mistakes:?}");
        assert!(mistakes.iter().all(|mistake| mistake.starts_with("a.toml")), "{mistakes:?}");
        assert!(mistakes.iter().all(|mistake| !mistake.contains('\n')), "{mistakes:?}");
    }
}

#[test]
fn a_file_that_is_there_and_one_that_would_be_wrong_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("cluster.json");
    let init = |region: &str| {
        let (region, out) = (vec![region.to_string()], out.clone());
        run(&InitArgs { region, answers: None, order: None, insecure_plain_text: false, out })
    };
    let error = init("us=10.0.0.1:1,10.0.0.1:1").unwrap_err().to_string();
    assert!(error.ends_with("is not written") && !out.exists(), "{error}");
    init("us=10.0.0.1:1").unwrap();
    let text = std::fs::read_to_string(&out).unwrap();
    let error = init("us=10.0.0.2:1").unwrap_err().to_string();
    assert!(error.contains("is there already"), "{error}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), text);
}
