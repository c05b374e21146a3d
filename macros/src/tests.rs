//! The errors that a block may have, and the code that a good one becomes.

use std::{collections::BTreeSet, fs, path::Path};

use proc_macro2::TokenStream;
use syn::{FnArg, ImplItem, Item, TraitItem, Type, Visibility};

use crate::{definition, expand};

const GOOD: &str = r#"
    impl Bank {
        const LIMIT: u64 = 5;

        /// Moves money.
        #[command]
        pub(crate) fn transfer(&mut self, from: u64, mut to: u64, sum: u64) -> Result<(), TransferError> { todo!() }

        #[command]
        fn r#move(&mut self, archived: String, place: &squall::Applied, at: u8) {}

        #[command]
        fn tick(&mut self) {}

        #[command]
        fn __1(&mut self) {}

        #[query]
        fn balance(&self, account: u64) -> Option<u64> { None }

        #[snapshot]
        fn save(&self) -> Snapshot { todo!() }

        #[restore]
        fn load(&mut self, from: &mut dyn io::Read) -> io::Result<()> { Ok(()) }

        #[view_changed]
        fn changed(&mut self, change: &ViewChange) {}

        #[wake_at]
        fn due(&self) -> Option<Hlc> { None }

        #[woken]
        fn expire(&mut self, at: &Applied) {}

        #[follow_ups]
        fn unpaid(&self) -> Range<u64> { 0..0 }

        #[follow_up]
        fn pay(&self, number: u64) -> Option<BankCommand> { None }

        #[changes]
        fn report(&mut self) -> Vec<(String, Option<u64>)> { Vec::new() }

        fn helper(&self) {}
    }
"#;

fn tokens(text: &str) -> TokenStream {
    text.parse().unwrap()
}

/// Reads what a block becomes as items.
fn expanded(arguments: &str, block: &str) -> Vec<Item> {
    let code = expand(tokens(arguments), tokens(block));
    syn::parse2::<syn::File>(code.clone()).unwrap_or_else(|error| panic!("{error}: {code}")).items
}

/// Returns the errors that a block has.
fn errors(arguments: &str, block: &str) -> Vec<String> {
    match definition::read(tokens(arguments), tokens(block)) {
        Ok((_, Ok(_))) => Vec::new(),
        Ok((_, Err(error))) | Err(error) => error.into_iter().map(|error| error.to_string()).collect(),
    }
}

/// Describes an item.
fn described(item: &Item) -> String {
    let all = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<_>>().join(" ");
    let crates = |visibility: &Visibility| {
        assert!(matches!(visibility, Visibility::Restricted(_)), "as visible as the most visible method");
        "pub(crate)"
    };
    match item {
        Item::Enum(made) => {
            format!(
                "{} {}: {}",
                crates(&made.vis),
                made.ident,
                all(&mut made.variants.iter().map(|variant| variant.ident.to_string()))
            )
        }
        Item::Trait(made) => {
            let methods = made.items.iter().filter_map(|item| match item {
                TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
                _ => None,
            });
            format!("{} {}: {}", crates(&made.vis), made.ident, all(&mut { methods }))
        }
        Item::Impl(made) => {
            let of = made.trait_.as_ref().map(|(of, _)| of.segments.last().unwrap().ident.to_string());
            let methods = made.items.iter().filter_map(|item| match item {
                ImplItem::Fn(method) => Some(method.sig.ident.to_string()),
                _ => None,
            });
            format!("impl {}: {}", of.unwrap_or_default(), all(&mut { methods }))
        }
        _ => panic!("an item that none expects"),
    }
}

#[test]
fn a_block_becomes_what_one_would_write_by_hand() {
    let items = expanded(r#"schema = "bank", version = 1"#, GOOD);
    let names: Vec<_> = items.iter().map(described).collect();
    assert_eq!(
        names,
        [
            "impl : transfer r#move tick __1 balance save load changed due expire unpaid pay report helper",
            "pub(crate) BankCommand: Transfer Move Tick Method1",
            "pub(crate) BankReply: Transfer Move Tick Method1 Undecodable",
            "pub(crate) BankQuery: Balance",
            "pub(crate) BankAnswer: Balance Undecodable",
            "impl Replicated: apply snapshot restore view_changed wake_at woken",
            "impl QueryService: answer follow_ups follow_up take_changes",
            "impl Watched: ",
            "pub(crate) BankCalls: transfer r#move tick __1 balance",
            "impl BankCalls: ",
        ]
    );
    let Item::Impl(block) = &items[0] else { panic!("the block comes first") };
    let kept = block.items.iter().filter_map(|item| match item {
        ImplItem::Fn(method) => Some(&method.attrs),
        _ => None,
    });
    assert!(kept.flatten().all(|attribute| attribute.path().is_ident("doc")), "only documentation is left");
}

#[test]
fn a_service_without_queries_and_schema_has_none() {
    let code = expand(TokenStream::new(), tokens("impl Log { #[command] fn append(&mut self, line: String) {} }"));
    let code = code.to_string();
    assert!(!code.contains("LogQuery") && !code.contains("SCHEMA") && code.contains("type Query = ()"), "{code}");
}

#[test]
fn a_service_in_json_reads_arguments_by_their_names_and_has_a_form() {
    let code = expand(tokens("json"), tokens(GOOD)).to_string();
    for part in ["\"move\"", "Transfer { from : u64 , to : u64 , sum : u64 }", "const JSON", "deny_unknown_fields"] {
        assert!(code.contains(part), "{part}: {code}");
    }
    assert!(!expand(TokenStream::new(), tokens(GOOD)).to_string().contains("serde"));
}

#[test]
fn errors_say_what_to_do() {
    let method = |text: &str| format!("impl Bank {{ #[command] fn good(&mut self) {{}} {text} }}");
    for (block, said) in [
        (method("#[command] fn a(&self) {}"), "write `&mut self`, or `#[query]`"),
        (method("#[changes] fn a(&mut self) -> Vec<u64> { todo!() }"), "Vec<(KEY, CHANGE)>"),
        (method("#[changes] fn a(&self) -> Vec<(u8, u64)> { todo!() }"), "Vec<(KEY, CHANGE)>"),
        (method("#[command] fn a(mut self) {}"), "write `&mut self`"),
        (method("#[command] fn a(self: &mut Self) {}"), "write `&mut self`"),
        (method("#[command] fn a() {}"), "write `&mut self`"),
        (method("#[query] fn a(&mut self) {}"), "write `&self`, or `#[command]`"),
        (method("#[command] fn a(&mut self, (a, b): (u8, u8)) {}"), "write a name here"),
        (method("#[command] fn a(&mut self, ref a: u8) {}"), "write a name here"),
        (method("#[command] fn a(&mut self, _: u8) {}"), "write a name here"),
        (method("#[command] fn a<T>(&mut self, a: T) {}"), "without parameters of types"),
        (method("#[command] fn a(&mut self) where u8: Copy {}"), "without `where`"),
        (method("#[command] async fn a(&mut self) {}"), "remove `async`"),
        (method("#[command] fn a(&mut self, name: &str) {}"), "take a `String` for a `&str`"),
        (method("#[command] fn a(&mut self, names: Vec<&str>) {}"), "take a `String` for a `&str`"),
        (method("#[command] fn a(&mut self, names: (u8, &[u8])) {}"), "a `Vec<T>` for a `&[T]`"),
        (method("#[command] fn a(&mut self, a: impl Copy) {}"), "name it"),
        (method("#[command] fn a(&mut self, at: &mut Applied) {}"), "write `&Applied`"),
        (method("#[query] fn a(&self, at: &Applied) {}"), "remove this argument"),
        (method("#[query] fn a(&self) -> &str {}"), "return a `String`"),
        (method("#[query] fn a(&self) -> Option<Self> {}"), "write the type's name for `Self`"),
        (method("#[command] #[query] fn a(&mut self) {}"), "leave one of these attributes"),
        (method("#[command(now)] fn a(&mut self) {}"), "takes no arguments"),
        (method("#[cfg(unix)] #[command] fn a(&mut self) {}"), "remove the condition"),
        (method("#[command] fn submit(&mut self) {}"), "take another name"),
        (method("#[command] fn read(&mut self) {}"), "take another name"),
        (method("#[query] fn query(&self) {}"), "take another name"),
        (method("#[snapshot] fn a(&self) -> Snapshot {}"), "write a method with `#[restore]`"),
        (method("#[restore] fn a(&mut self) {}"), "write a method with `#[snapshot]`"),
        (method("#[wake_at] fn a(&self) -> Option<Hlc> {}"), "write a method with `#[woken]`"),
        (method("#[woken] fn a(&mut self, at: &Applied) {}"), "write a method with `#[wake_at]`"),
        (method("#[follow_ups] fn a(&self) -> Range<u64> {}"), "write a method with `#[follow_up]`"),
        (method("#[follow_up] fn a(&self, number: u64) -> Option<Reply> {}"), "write a method with `#[follow_ups]`"),
        (
            method("#[view_changed] fn a(&mut self) {} #[view_changed] fn b(&mut self) {}"),
            "a service has one such method",
        ),
        ("impl Bank { #[query] fn a(&self) {} }".to_owned(), "write `#[command]` before a method"),
        ("impl Clone for Bank { #[command] fn a(&mut self) {} }".to_owned(), "without a trait"),
        ("impl<T> Bank<T> { #[command] fn a(&mut self) {} }".to_owned(), "without parameters"),
        ("impl [u8] { #[command] fn a(&mut self) {} }".to_owned(), "a type with a name"),
        ("struct Bank;".to_owned(), "before an `impl` block"),
    ] {
        let told = errors("", &block);
        assert!(matches!(&told[..], [one] if one.contains(said)), "{block}: {said:?} is not all of {told:?}");
    }
    for (arguments, said) in [
        ("name = \"bank\"", "there are `schema = \"NAME\", version = NUMBER`"),
        ("schema = \"bank\"", "has a name and a version"),
        ("version = 1", "has a name and a version"),
        ("version = 1, version = 2", "given twice"),
        ("json, json", "given twice"),
    ] {
        let told = errors(arguments, &method(""));
        assert!(matches!(&told[..], [one] if one.contains(said)), "{arguments}: {said:?} is not all of {told:?}");
    }
    assert_eq!(errors("", GOOD), Vec::<String>::new());
    assert_eq!(errors("", &method("#[query] fn read(&self) {}")), Vec::<String>::new(), "a client has no such method");
}

#[test]
fn all_errors_are_told_at_once_and_the_methods_stay() {
    let block = "impl Bank { #[command] fn a(&self, name: &str) {} #[query] fn b(&mut self) {} }";
    assert_eq!(errors("schema = 1", block).len(), 4);
    let items = expanded("schema = 1", block);
    assert!(matches!(&items[0], Item::Impl(block) if block.items.len() == 2));
    assert_eq!(items[1..].iter().filter(|item| matches!(item, Item::Macro(_))).count(), 4);
}

/// Collects the public methods of a type from sources below a folder.
fn methods_of(types: &[&str], folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            methods_of(types, &path, found);
        }
        if path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        for item in syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap().items {
            let Item::Impl(block) = item else { continue };
            let Type::Path(of) = &*block.self_ty else { continue };
            let of_type = of.path.segments.last().is_some_and(|last| types.iter().any(|name| last.ident == name));
            if block.trait_.is_some() || !of_type {
                continue;
            }
            found.extend(block.items.into_iter().filter_map(|item| match item {
                ImplItem::Fn(method)
                    if matches!(method.vis, Visibility::Public(_))
                        && matches!(method.sig.inputs.first(), Some(FnArg::Receiver(_))) =>
                {
                    Some(method.sig.ident.to_string())
                }
                _ => None,
            }));
        }
    }
}

#[test]
fn the_names_of_the_handles_own_methods_are_known() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let methods = |types: &[&str], folders: &[&str]| {
        let mut found = BTreeSet::new();
        folders.iter().for_each(|folder| methods_of(types, &sources.join(folder), &mut found));
        assert!(found.len() > 3, "{types:?} have methods in {folders:?}");
        found
    };
    let known = definition::OF_CLIENTS;
    // A simulated client is another type.
    for name in methods(&["Client"], &["clients"]) {
        assert!(known.contains(&&*name), "add {name:?}, a method of clients, to OF_CLIENTS");
    }
    for name in methods(&["Group", "ServedGroup"], &["clients", "group", "durable", "node"]) {
        let is_known = known.contains(&&*name) || definition::OF_GROUPS.contains(&&*name);
        assert!(is_known, "add {name:?}, a method of members' handles, to OF_GROUPS");
    }
}
