//! What models say against transformers, token by token, and within a memory limit.

mod common;

use common::{MODELS, fixture, golden};
use plimsoll_hub::{Adapter, Folder, Generator, Sampling};
use plimsoll_run::MemoryRequest;

fn say(name: &str, request: &MemoryRequest, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut folder = Folder::open(fixture(name)).unwrap();
    let mut generator = Generator::new(&mut folder, None, request, prompt.len() + n, 1, None).unwrap();
    let mut logits = generator.read(prompt).unwrap();
    let mut said = Vec::new();
    while said.len() < n {
        said.push(generator.choose(&logits, &Sampling::default()));
        if said.len() < n {
            logits = generator.read(&said[said.len() - 1..]).unwrap();
        }
    }
    said
}

#[test]
fn sixty_four_greedy_tokens_are_those_of_transformers() {
    for name in MODELS {
        let golden = golden(name);
        let prompt: Vec<u32> = serde_json::from_value(golden["prompt"].clone()).unwrap();
        let expected: Vec<u32> = serde_json::from_value(golden["generated"].clone()).unwrap();
        assert_eq!(expected.len(), 64);
        assert_eq!(say(name, &MemoryRequest::default(), &prompt, 64), expected, "{name}");
    }
}

#[test]
fn a_prompt_that_is_read_in_chunks_is_the_prompt() {
    let mut folder = Folder::open(fixture("gemma3")).unwrap();
    let prompt: Vec<u32> = (0..70).map(|i| (i * 37) % 288).collect();
    let request = MemoryRequest::default();
    let whole = Generator::new(&mut folder, None, &request, 80, 1, None).unwrap().read(&prompt).unwrap();
    let mut one_by_one = Generator::new(&mut folder, None, &request, 80, 1, None).unwrap();
    let mut last = Vec::new();
    for token in &prompt {
        last = one_by_one.read(&[*token]).unwrap();
    }
    let gap = whole.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(gap < 1e-4, "{gap}");
}

#[test]
fn what_there_is_no_room_for_is_refused() {
    let mut folder = Folder::open(fixture("llama")).unwrap();
    let request = MemoryRequest::default();
    let error = Generator::new(&mut folder, None, &request, 97, 1, None).err().unwrap().to_string();
    assert!(error.contains("97 tokens") && error.contains("96 positions"), "{error}");
    let mut generator = Generator::new(&mut folder, None, &request, 4, 1, None).unwrap();
    assert!(generator.read(&[]).unwrap_err().to_string().contains("prompt"));
    assert!(generator.read(&[288]).unwrap_err().to_string().contains("token 288"));
    assert!(generator.read(&[1, 2, 3, 4, 5]).unwrap_err().to_string().contains("room"));
    generator.read(&[1, 2, 3, 4]).unwrap();
    assert!(generator.read(&[5]).is_err());
    let tiny = MemoryRequest { limit: Some("1MiB".parse().unwrap()), ..MemoryRequest::default() };
    let error = Generator::new(&mut folder, None, &tiny, 8, 1, None).err().unwrap().to_string();
    assert!(error.contains("MiB"), "{error}");
}

#[test]
fn draws_follow_temperature_share_and_seed() {
    let mut folder = Folder::open(fixture("llama")).unwrap();
    let mut adapter = Adapter::open(fixture("llama-adapter")).unwrap();
    let mut generator =
        Generator::new(&mut folder, Some(&mut adapter), &MemoryRequest::default(), 4, 7, None).unwrap();
    let logits = [0.0, 3.0, 2.9, -9.0];
    let hot = Sampling { temperature: 1.0, ..Sampling::default() };
    let drawn: Vec<u32> = (0..200).map(|_| generator.choose(&logits, &hot)).collect();
    assert!([0, 1, 2].iter().all(|token| drawn.contains(token)), "{drawn:?}");
    let narrow = Sampling { top_p: 0.6, ..hot };
    assert!((0..200).all(|_| [1, 2].contains(&generator.choose(&logits, &narrow))));
    assert_eq!(generator.choose(&logits, &Sampling::default()), 1);
}
