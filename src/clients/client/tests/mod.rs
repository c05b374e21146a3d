//! A client against a group whose members die, lag behind, and lose what they had not yet sent.

mod everyone;
mod rules;
mod watches;
mod world;
