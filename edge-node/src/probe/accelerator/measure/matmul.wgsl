// A product of square matrices in tiles of 64 by 64, each by 256 invocations of 4 by 4 results. `NUMBER` becomes f32 or f16; sums are f32.
struct Params { n: u32, a: u32, b: u32, c: u32 }

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> left: array<NUMBER>;
@group(0) @binding(2) var<storage, read> right: array<NUMBER>;
@group(0) @binding(3) var<storage, read_write> product: array<f32>;

var<workgroup> rows: array<NUMBER, 1024>;
var<workgroup> columns: array<NUMBER, 1024>;

@compute @workgroup_size(16, 16)
fn main(
    @builtin(workgroup_id) tile: vec3<u32>,
    @builtin(local_invocation_id) me: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let n = params.n;
    let row = tile.y * 64u;
    let column = tile.x * 64u;
    var s0 = vec4<f32>(0.0);
    var s1 = vec4<f32>(0.0);
    var s2 = vec4<f32>(0.0);
    var s3 = vec4<f32>(0.0);
    for (var k = 0u; k < n; k += 16u) {
        for (var i = 0u; i < 4u; i += 1u) {
            let e = index + i * 256u;
            rows[(e % 16u) * 64u + e / 16u] = left[(row + e / 16u) * n + k + e % 16u];
            columns[e] = right[(k + e / 64u) * n + column + e % 64u];
        }
        workgroupBarrier();
        for (var j = 0u; j < 16u; j += 1u) {
            let c = j * 64u + me.x * 4u;
            let r = j * 64u + me.y * 4u;
            let b = vec4<f32>(f32(columns[c]), f32(columns[c + 1u]), f32(columns[c + 2u]), f32(columns[c + 3u]));
            s0 = fma(vec4<f32>(f32(rows[r])), b, s0);
            s1 = fma(vec4<f32>(f32(rows[r + 1u])), b, s1);
            s2 = fma(vec4<f32>(f32(rows[r + 2u])), b, s2);
            s3 = fma(vec4<f32>(f32(rows[r + 3u])), b, s3);
        }
        workgroupBarrier();
    }
    let first = (row + me.y * 4u) * n + column + me.x * 4u;
    for (var i = 0u; i < 4u; i += 1u) {
        product[first + i] = s0[i];
        product[first + n + i] = s1[i];
        product[first + 2u * n + i] = s2[i];
        product[first + 3u * n + i] = s3[i];
    }
}
