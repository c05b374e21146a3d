//! A check of JSON against a schema, for the keywords that the book's schemas use. Other keywords are errors.
//!
//! It is stricter than the schema says: a field that the schema does not name is an error, and so is one that it names
//! and does not require. So neither can have what the other lacks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

const KNOWN: [&str; 14] = [
    "$defs",
    "$ref",
    "$schema",
    "allOf",
    "description",
    "enum",
    "items",
    "minimum",
    "oneOf",
    "properties",
    "required",
    "title",
    "type",
    "$id",
];

/// A schema, and the alternatives of it that values have taken.
pub(crate) struct Schema {
    root: Value,
    taken: BTreeSet<String>,
}

impl Schema {
    pub(crate) fn parse(text: &str) -> Schema {
        Schema { root: serde_json::from_str(text).expect("the schema is JSON"), taken: BTreeSet::new() }
    }

    /// Checks a value. The error names the place.
    pub(crate) fn check(&mut self, value: &Value) -> Result<(), String> {
        let taken = self.at("", value, "$")?;
        self.taken.extend(taken);
        Ok(())
    }

    /// The alternatives (values of an enumeration, types, cases) that no value has taken.
    pub(crate) fn untaken(&self) -> Vec<String> {
        let mut all = BTreeSet::new();
        self.alternatives("", &mut all);
        all.difference(&self.taken).cloned().collect()
    }

    fn schema(&self, place: &str) -> &Value {
        self.root.pointer(place).unwrap_or_else(|| panic!("the schema has no {place}"))
    }

    /// Checks a value against the schema at a place. Returns the alternatives that it takes.
    fn at(&self, place: &str, value: &Value, path: &str) -> Result<BTreeSet<String>, String> {
        let schema = self.schema(place);
        if let Some(keyword) = schema.as_object().and_then(|map| map.keys().find(|key| !KNOWN.contains(&key.as_str())))
        {
            return Err(format!("{place}: the check does not know {keyword:?}"));
        }
        if let Some(to) = schema["$ref"].as_str() {
            return self.at(to.trim_start_matches('#'), value, path);
        }
        let mut taken = BTreeSet::new();
        if let Some(cases) = schema["oneOf"].as_array() {
            let tried = (0..cases.len()).map(|case| (case, self.at(&format!("{place}/oneOf/{case}"), value, path)));
            let (fits, errors): (Vec<_>, Vec<_>) = tried.partition(|(_, tried)| tried.is_ok());
            let [(case, Ok(of_case))] = &fits[..] else {
                let errors: Vec<String> = errors.into_iter().filter_map(|(_, tried)| tried.err()).collect();
                return Err(format!("{path} fits {} cases of {place}: {}", fits.len(), errors.join(" | ")));
            };
            taken.extend(of_case.iter().cloned());
            taken.insert(format!("{place}/oneOf/{case}"));
        }
        if let Some(values) = schema["enum"].as_array() {
            let case = values.iter().position(|other| other == value);
            let case = case.ok_or_else(|| format!("{path} is {value}, which {place} does not list"))?;
            taken.insert(format!("{place}/enum/{case}"));
        }
        if !schema["type"].is_null() {
            taken.extend(
                typed(&schema["type"], value)
                    .ok_or_else(|| format!("{path} is {value}: see {place}"))?
                    .map(|case| format!("{place}/type/{case}")),
            );
        }
        if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), value.as_i64())
            && number < least
        {
            return Err(format!("{path} is {number}, less than {least}"));
        }
        if let Some(items) = value.as_array() {
            for (index, item) in items.iter().enumerate() {
                taken.extend(self.at(&format!("{place}/items"), item, &format!("{path}[{index}]"))?);
            }
        }
        if !schema["allOf"].is_null() && !value.is_object() {
            return Err(format!("{path} is {value}, and no object: see {place}"));
        }
        let properties = self.properties(place);
        if let Some(fields) = value.as_object().filter(|_| schema["oneOf"].is_null()) {
            if let Some(missing) = properties.keys().find(|name| !fields.contains_key(*name)) {
                return Err(format!("{path} lacks {missing:?}, which {place} has"));
            }
            for (name, field) in fields {
                let of = properties.get(name).ok_or_else(|| format!("{path}.{name} is not in {place}"))?;
                taken.extend(self.at(of, field, &format!("{path}.{name}"))?);
            }
        }
        Ok(taken)
    }

    /// The fields of an object, with the places of their schemas.
    fn properties(&self, place: &str) -> BTreeMap<String, String> {
        let schema = self.schema(place);
        if let Some(to) = schema["$ref"].as_str() {
            return self.properties(to.trim_start_matches('#'));
        }
        let parts = schema["allOf"].as_array().map_or(0, Vec::len);
        let mut all: BTreeMap<String, String> =
            (0..parts).flat_map(|part| self.properties(&format!("{place}/allOf/{part}"))).collect();
        let own = schema["properties"].as_object().into_iter().flat_map(|own| own.keys());
        all.extend(own.map(|name| (name.clone(), format!("{place}/properties/{name}"))));
        all
    }

    /// Collects all alternatives at and below a place. Fails if a property is not required.
    fn alternatives(&self, place: &str, all: &mut BTreeSet<String>) {
        let schema = self.schema(place);
        for keyword in ["oneOf", "enum", "type"] {
            let cases = schema[keyword].as_array().map_or(0, Vec::len);
            all.extend((0..cases).map(|case| format!("{place}/{keyword}/{case}")));
        }
        for keyword in ["oneOf", "allOf"] {
            let cases = schema[keyword].as_array().map_or(0, Vec::len);
            (0..cases).for_each(|case| self.alternatives(&format!("{place}/{keyword}/{case}"), all));
        }
        for keyword in ["properties", "$defs"] {
            let names = schema[keyword].as_object().into_iter().flat_map(|map| map.keys());
            names.for_each(|name| self.alternatives(&format!("{place}/{keyword}/{name}"), all));
        }
        if !schema["items"].is_null() {
            self.alternatives(&format!("{place}/items"), all);
        }
        let named: BTreeSet<&str> =
            schema["properties"].as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
        let required: BTreeSet<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(named, required, "{place}: all fields are always there");
    }
}

/// Whether a value has a type, or one of several; in that case, which.
fn typed(types: &Value, value: &Value) -> Option<Option<usize>> {
    let is = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => panic!("the check does not know the type {name}"),
    };
    match types.as_array() {
        Some(types) => types.iter().position(is).map(Some),
        None => is(types).then_some(None),
    }
}

#[test]
fn what_differs_from_a_schema_is_found() {
    let text = r##"{
        "oneOf": [{"$ref": "#/$defs/one"}, {"allOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/more"}]}],
        "$defs": {
            "one": {"type": "object", "required": ["a"], "properties": {"a": {"type": ["integer", "null"], "minimum": 0}}},
            "more": {"type": "object", "required": ["b"], "properties": {"b": {"type": "array", "items": {"enum": ["x", "y"]}}}}
        }
    }"##;
    let mut schema = Schema::parse(text);
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
    for wrong in [
        r#"{}"#,
        r#"{"a": "1"}"#,
        r#"{"a": -1}"#,
        r#"{"a": 1, "c": 1}"#,
        r#"{"a": 1, "b": ["z"]}"#,
        r#"{"b": []}"#,
        "7",
    ] {
        assert!(schema.check(&parse(wrong)).is_err(), "{wrong}");
    }
    assert_eq!(schema.untaken().len(), 6, "nothing counts of what is wrong");
    for right in [r#"{"a": 1}"#, r#"{"a": null, "b": ["x"]}"#] {
        schema.check(&parse(right)).unwrap_or_else(|error| panic!("{right}: {error}"));
    }
    assert_eq!(schema.untaken(), ["/$defs/more/properties/b/items/enum/1"]);
    let unknown = Schema::parse(r#"{"pattern": "x"}"#).check(&parse("1"));
    assert!(unknown.is_err_and(|error| error.contains("pattern")));
}
