// Multiply-adds out of registers: eight independent chains of four, so that no lane waits for its own last result.
struct Params { rounds: u32, a: u32, b: u32, c: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let start = f32(id.x % 1024u) / 1024.0;
    let lanes = vec4<f32>(0.0, 0.25, 0.5, 0.75);
    let m = vec4<f32>(0.9990234375);
    let c = vec4<f32>(0.0009765625);
    var x0 = lanes + start;
    var x1 = lanes + start + 1.0;
    var x2 = lanes + start + 2.0;
    var x3 = lanes + start + 3.0;
    var x4 = lanes + start + 4.0;
    var x5 = lanes + start + 5.0;
    var x6 = lanes + start + 6.0;
    var x7 = lanes + start + 7.0;
    for (var i = 0u; i < params.rounds; i += 1u) {
        x0 = fma(x0, m, c);
        x1 = fma(x1, m, c);
        x2 = fma(x2, m, c);
        x3 = fma(x3, m, c);
        x4 = fma(x4, m, c);
        x5 = fma(x5, m, c);
        x6 = fma(x6, m, c);
        x7 = fma(x7, m, c);
    }
    let all = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7;
    sums[id.x] = all.x + all.y + all.z + all.w;
}
