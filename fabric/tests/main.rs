//! Tests of single fabrics, of several as one, and of nodes that are processes.

mod child;
mod mixed;
mod nodes;
mod shm;
mod sim;
mod tcp;
