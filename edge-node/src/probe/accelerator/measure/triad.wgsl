// z = 3 x + y over whole buffers: two reads and a write for each number, and nothing else that takes time.
struct Params { vectors: u32, stride: u32, a: u32, b: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> z: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var i = id.x; i < params.vectors; i += params.stride) {
        z[i] = 3.0 * x[i] + y[i];
    }
}
