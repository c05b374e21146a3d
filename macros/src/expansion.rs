//! The code that a service's definition stands for.
//!
//! Names of the user's are written as they are, all others in full. Local names are hygienic, so that an argument may
//! have any name.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{Attribute, Ident, Type, Visibility, ext::IdentExt};

use crate::definition::{Argument, Definition, Method};

/// Writes all that stands beside the block of methods.
pub(crate) fn of(definition: &Definition) -> TokenStream {
    let names = Names::of(definition);
    let messages = messages(definition, &names);
    let replicated = replicated(definition, &names);
    let query_service = query_service(definition, &names);
    let calls = calls(definition, &names);
    quote! { #messages #replicated #query_service #calls }
}

/// The names of the items that are made.
struct Names {
    command: Ident,
    reply: Ident,
    query: Ident,
    answer: Ident,
    calls: Ident,
}

impl Names {
    fn of(definition: &Definition) -> Names {
        let named = |end: &str| format_ident!("{}{end}", definition.name, span = Span::call_site());
        Names {
            command: named("Command"),
            reply: named("Reply"),
            query: named("Query"),
            answer: named("Answer"),
            calls: named("Calls"),
        }
    }
}

/// A name that no name of the user's can meet.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

impl Method {
    fn sent(&self) -> impl Iterator<Item = (&Ident, &Type)> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Sent(name, of) => Some((name, &**of)),
            Argument::Applied => None,
        })
    }

    fn names(&self) -> impl Iterator<Item = &Ident> {
        self.sent().map(|(name, _)| name)
    }

    /// Writes the name that the method has in JSON.
    fn in_json(&self) -> TokenStream {
        let name = self.name.unraw().to_string();
        quote! { #[serde(rename = #name)] }
    }

    /// Writes the method's variant of the enum, with the arguments' names: as a value and as a pattern.
    fn with_names(&self, of: &Ident) -> TokenStream {
        let (variant, mut names) = (&self.variant, self.names().peekable());
        if names.peek().is_none() {
            quote! { #of::#variant }
        } else {
            quote! { #of::#variant(#(#names),*) }
        }
    }

    /// The documentation that the method has, or else this.
    fn docs_or(&self, text: String) -> TokenStream {
        let docs: &[Attribute] = &self.docs;
        if docs.is_empty() {
            quote! { #[doc = #text] }
        } else {
            quote! { #(#docs)* }
        }
    }
}

/// Writes the enums that travel.
fn messages(definition: &Definition, names: &Names) -> TokenStream {
    let (visibility, of, json) = (&definition.visibility, &definition.name, definition.json);
    let pair = |kind: &str, arguments: &Ident, results: &Ident, methods: &[Method]| {
        let docs = format!("The arguments of a {kind} of `{of}`.");
        let from_json = json.then(|| from_json(arguments, methods));
        let arguments = message(visibility, &docs, &TokenStream::new(), arguments, methods.iter().map(sent));
        let docs = format!("The result of a {kind} of `{of}`.");
        let variants = methods.iter().map(|method| result(method, json)).chain([undecodable()]);
        let into_json = json.then(|| {
            quote! {
                #[derive(::squall::__macro::serde::Serialize)]
                #[serde(crate = "::squall::__macro::serde")]
            }
        });
        let results = message(visibility, &docs, &into_json.unwrap_or_default(), results, variants);
        quote! { #arguments #from_json #results }
    };
    let mut written = pair("command", &names.command, &names.reply, &definition.commands);
    if !definition.queries.is_empty() {
        written.extend(pair("query", &names.query, &names.answer, &definition.queries));
    }
    written
}

fn message(
    visibility: &Visibility,
    docs: &str,
    attributes: &TokenStream,
    name: &Ident,
    variants: impl Iterator<Item = TokenStream>,
) -> TokenStream {
    quote! {
        #[doc = #docs]
        #[derive(
            ::squall::__macro::rkyv::Archive,
            ::squall::__macro::rkyv::Serialize,
            ::squall::__macro::rkyv::Deserialize,
        )]
        #[rkyv(crate = ::squall::__macro::rkyv)]
        #attributes
        #[allow(dead_code, clippy::enum_variant_names, clippy::large_enum_variant)]
        #visibility enum #name { #(#variants,)* }
    }
}

/// Writes the variant with a method's arguments. They have no names: for fields with names, rkyv derives others without
/// documentation, which a lint of the user's may deny.
fn sent(method: &Method) -> TokenStream {
    let (name, variant) = (&method.name, &method.variant);
    let docs = method.docs_or(format!("The arguments of `{name}`."));
    let mut names = method.names().map(|name| format!("`{name}`")).peekable();
    if names.peek().is_none() {
        return quote! { #docs #variant };
    }
    let order = format!("Arguments: {}.", names.collect::<Vec<_>>().join(", "));
    let types = method.sent().map(|(_, of)| of);
    quote! { #docs #[doc = ""] #[doc = #order] #variant(#(#types),*) }
}

/// Writes the reading of arguments in JSON: `{"METHOD": {"ARGUMENT": VALUE, ..}}`.
fn from_json(name: &Ident, methods: &[Method]) -> TokenStream {
    let named = format_ident!("__{name}Json");
    let variants = methods.iter().map(|method| {
        let (variant, json) = (&method.variant, method.in_json());
        let fields = method.sent().map(|(name, of)| quote! { #name: #of });
        quote! { #json #variant { #(#fields),* } }
    });
    let arms = methods.iter().map(|method| {
        let (variant, names, made) = (&method.variant, method.names(), method.with_names(name));
        quote! { #named::#variant { #(#names),* } => #made }
    });
    let from = local("from");
    quote! {
        const _: () = {
            #[derive(::squall::__macro::serde::Deserialize)]
            #[serde(crate = "::squall::__macro::serde", deny_unknown_fields)]
            #[allow(clippy::enum_variant_names, clippy::large_enum_variant)]
            enum #named { #(#variants),* }

            impl<'de> ::squall::__macro::serde::Deserialize<'de> for #name {
                fn deserialize<D: ::squall::__macro::serde::Deserializer<'de>>(
                    #from: D,
                ) -> ::core::result::Result<#name, D::Error> {
                    let #from = <#named as ::squall::__macro::serde::Deserialize>::deserialize(#from)?;
                    ::core::result::Result::Ok(match #from { #(#arms,)* })
                }
            }
        };
    }
}

/// Writes the variant with a method's result.
fn result(method: &Method, json: bool) -> TokenStream {
    let Method { name, variant, result, .. } = method;
    let docs = format!("The result of `{name}`.");
    let renamed = json.then(|| method.in_json());
    quote! { #[doc = #docs] #renamed #variant(#result) }
}

/// Writes the variant for arguments whose types refuse them, though their bytes have passed the check.
fn undecodable() -> TokenStream {
    quote! {
        /// No result: the arguments could not be decoded, so that the method was not called.
        Undecodable
    }
}

fn replicated(definition: &Definition, names: &Names) -> TokenStream {
    let (service, Names { command, reply, .. }) = (&definition.service, names);
    let (archived, at) = (local("archived"), local("at"));
    let schema = definition.schema.as_ref().map(|(name, version)| {
        quote! { const SCHEMA: ::squall::Schema = ::squall::Schema::new(#name, #version); }
    });
    let arms = arms(command, reply, &definition.commands, &at);
    let snapshot = definition.snapshot.as_ref().map(|method| {
        quote! {
            fn snapshot(&self) -> ::squall::Snapshot {
                Self::#method(self)
            }
        }
    });
    let restore = definition.restore.as_ref().map(|method| {
        let from = local("from");
        quote! {
            fn restore(&mut self, #from: &mut dyn ::std::io::Read) -> ::std::io::Result<()> {
                Self::#method(self, #from)
            }
        }
    });
    let view_changed = definition.view_changed.as_ref().map(|method| {
        let change = local("change");
        quote! {
            fn view_changed(&mut self, #change: &::squall::ViewChange) {
                Self::#method(self, #change);
            }
        }
    });
    let wake_at = definition.wake_at.as_ref().map(|method| {
        quote! {
            fn wake_at(&self) -> ::core::option::Option<::squall::Hlc> {
                Self::#method(self)
            }
        }
    });
    let woken = definition.woken.as_ref().map(|method| {
        quote! {
            fn woken(&mut self, #at: &::squall::Applied) {
                Self::#method(self, #at);
            }
        }
    });
    quote! {
        impl ::squall::Replicated for #service {
            type Command = #command;
            type Reply = #reply;
            #schema
            #[allow(unused_variables, deprecated)]
            fn apply(&mut self, #archived: &::squall::__macro::rkyv::Archived<#command>, #at: &::squall::Applied) -> #reply {
                match ::squall::__macro::decode::<#command>(#archived) { #arms }
            }
            #snapshot
            #restore
            #view_changed
            #wake_at
            #woken
        }
    }
}

/// Writes the arms that call the methods with what was decoded.
fn arms(message: &Ident, result: &Ident, methods: &[Method], at: &Ident) -> TokenStream {
    let arms = methods.iter().map(|method| {
        let (Method { name, variant, .. }, sent) = (method, method.with_names(message));
        let arguments = method.arguments.iter().map(|argument| match argument {
            Argument::Sent(name, _) => name,
            Argument::Applied => at,
        });
        quote! {
            ::core::option::Option::Some(#sent) => {
                #result::#variant(Self::#name(self, #(#arguments),*))
            }
        }
    });
    quote! { #(#arms)* ::core::option::Option::None => #result::Undecodable, }
}

fn query_service(definition: &Definition, names: &Names) -> TokenStream {
    let (service, Names { query, answer, .. }) = (&definition.service, names);
    let archived = local("archived");
    let follow_ups = follow_ups(definition);
    let json = definition.json.then(|| {
        quote! {
            const JSON: ::core::option::Option<::squall::JsonForm> =
                ::core::option::Option::Some(::squall::JsonForm::of::<Self>());
        }
    });
    let (take_changes, watched) = changes(definition);
    if definition.queries.is_empty() {
        return quote! {
            impl ::squall::QueryService for #service {
                type Query = ();
                type Answer = ();
                #json
                fn answer(&self, _: &::squall::__macro::rkyv::Archived<()>) {}
                #follow_ups
                #take_changes
            }
            #watched
        };
    }
    let arms = arms(query, answer, &definition.queries, &archived);
    quote! {
        impl ::squall::QueryService for #service {
            type Query = #query;
            type Answer = #answer;
            #json
            #[allow(deprecated)]
            fn answer(&self, #archived: &::squall::__macro::rkyv::Archived<#query>) -> #answer {
                match ::squall::__macro::decode::<#query>(#archived) { #arms }
            }
            #follow_ups
            #take_changes
        }
        #watched
    }
}

/// Writes the methods that make follow-ups, if there are such.
fn follow_ups(definition: &Definition) -> Option<TokenStream> {
    let (due, make) = definition.follow_ups.as_ref().zip(definition.follow_up.as_ref())?;
    let number = local("number");
    Some(quote! {
        fn follow_ups(&self) -> ::core::ops::Range<u64> {
            Self::#due(self)
        }
        fn follow_up(&self, #number: u64) -> ::core::option::Option<<Self as ::squall::Replicated>::Command> {
            Self::#make(self, #number)
        }
    })
}

/// Writes the method that reports changes, and the trait that names their type.
fn changes(definition: &Definition) -> (TokenStream, TokenStream) {
    let Some((method, change)) = &definition.changes else { return Default::default() };
    let (service, into) = (&definition.service, local("into"));
    let take_changes = quote! {
        fn take_changes(&mut self, #into: &mut ::squall::Changes) {
            for (key, change) in Self::#method(self) {
                #into.push(key, &change);
            }
        }
    };
    let watched = quote! {
        impl ::squall::Watched for #service {
            type Change = #change;
        }
    };
    (take_changes, watched)
}

/// Writes the trait whose methods the handles have.
fn calls(definition: &Definition, names: &Names) -> TokenStream {
    let (service, visibility, calls) = (&definition.service, &definition.visibility, &names.calls);
    let pending = quote! { <Self as ::squall::__macro::Commands<#service>>::Pending };
    let call = quote! { ::squall::__macro::Commands::<#service>::call_command };
    let commands = definition.commands.iter().map(|method| {
        let body = calling(method, &call, &names.command, &names.reply);
        signature(method, "command", &pending, &TokenStream::new(), &body)
    });
    let answer = &names.answer;
    let pending = quote! { ::squall::client::Call<#answer> };
    let bound = quote! { where Self: ::squall::__macro::Queries<#service> };
    let call = quote! { ::squall::__macro::Queries::<#service>::call_query };
    let queries = definition.queries.iter().map(|method| {
        let body = calling(method, &call, &names.query, answer);
        signature(method, "query", &pending, &bound, &body)
    });
    let methods = commands.chain(queries);
    let docs =
        format!("The methods of `{}` as calls of a client, and its commands as calls of a member.", definition.name);
    quote! {
        #[doc = #docs]
        #[allow(dead_code, clippy::too_many_arguments)]
        #visibility trait #calls: ::squall::__macro::Commands<#service> {
            #(#methods)*
        }
        impl<__Handle: ::squall::__macro::Commands<#service>> #calls for __Handle {}
    }
}

fn signature(
    method: &Method,
    kind: &str,
    pending: &TokenStream,
    bound: &TokenStream,
    body: &TokenStream,
) -> TokenStream {
    let Method { name, result, .. } = method;
    let docs = method.docs_or(format!("Calls the {kind} `{name}`."));
    let arguments = method.sent().map(|(name, of)| quote! { #name: #of });
    quote! {
        #docs
        fn #name(&self, #(#arguments),*) -> ::squall::TypedCall<#pending, #result> #bound { #body }
    }
}

/// Writes the call of a handle with a message of the arguments, and the way back from the reply to the result.
fn calling(method: &Method, call: &TokenStream, message: &Ident, reply: &Ident) -> TokenStream {
    let (variant, message) = (&method.variant, method.with_names(message));
    quote! {
        #call(self, &#message, |reply| match reply {
            #reply::#variant(result) => ::core::option::Option::Some(result),
            _ => ::core::option::Option::None,
        })
    }
}
