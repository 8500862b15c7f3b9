"""Phrases of captions.

Texts of composed scenes: captions in Clotho's style, and descriptions in Freesound's.

A phrasing is a wording of a sound class, in two forms: a clause ("a dog barks") and a noun phrase ("a barking dog").
A template is a wording of a kind of scene, with placeholders for its events. `{a}` stands for the clause, and `{A}` for
the noun phrase, of the first event; b and c stand for the second and third. In the kind `background`, c is the
background. The last phrasings and templates of each list can be reserved for test splits (held out).
"""

Phrasing = tuple[str, str]  # clause and noun phrase: "a dog barks", "a barking dog"


def _parse_lists(text: str) -> dict[str, tuple[str, ...]]:
    """Read a text of names, each followed by indented lines; return a dict from name to its lines."""
    lists: dict[str, list[str]] = {}
    name = ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            lists[name].append(line.strip())
        else:
            name, lists[line] = line, []
    return {name: tuple(lines) for name, lines in lists.items()}


def _parse_phrasing(line: str) -> Phrasing:
    """Split a line `clause | noun phrase` into the two forms of a phrasing."""
    clause, noun = line.split(" | ")
    return clause, noun


TEMPLATES = _parse_lists("""
one
    {a}
    {A}
    {A} with no other sound
    {a} and nothing else is heard
    only {A} can be heard
sequence_2
    {a}, then {b}
    {A} followed by {B}
    first {a}, and afterwards {b}
    {b} after {A}
    {a} before {b}
overlap
    {a} while {b}
    {A} and {B} at the same time
    {a} as {b}
    {A} together with {B}
    {A} mixed with {B}
sequence_3
    {a}, then {b}, then {c}
    {A} followed by {B} and then {C}
    first {a}, next {b}, and finally {c}
    {A}, after that {B}, and at the end {C}
    {a} before {b}, and last of all {c}
background
    {c} in the background as {a} and then {b}
    {a}, then {b}, with {C} in the background
    {A} followed by {B} over a background of {C}
    {c} the whole time while {a} and then {b}
    against a backdrop of {C}, {a} before {b}
""")

# By ESC-50's category names, except phone_ring and whistle, which ESC-50 does not have.
_PHRASINGS = _parse_lists("""
siren
    a siren wails | the wail of a siren
    an emergency siren sounds | an emergency siren
    a siren rises and falls | a siren that rises and falls
    an ambulance siren blares | a blaring ambulance siren
    a police car whoops | the whooping of a police car
church_bells
    a bell rings | a ringing bell
    a church bell tolls | the tolling of a church bell
    a large bell is struck repeatedly | a large bell being struck
    bells ring from a tower | bells ringing from a tower
    a heavy bronze chime resounds | chimes of heavy bronze
clock_alarm
    an alarm beeps | a beeping alarm
    an alarm clock goes off | an alarm clock going off
    electronic beeps repeat | repeated electronic beeps
    a digital alarm is beeping quickly | the quick beeping of a digital alarm
    a shrill electronic buzzer pulses | a pulsing electronic buzzer
rain
    rain falls | falling rain
    it rains steadily | steady rain
    raindrops patter on the ground | raindrops pattering on the ground
    rain is pouring down | pouring rain
    a shower drums on a roof | a shower drumming on a roof
wind
    the wind blows | blowing wind
    wind howls | howling wind
    a strong wind is gusting | gusts of strong wind
    wind rushes past | a rush of wind
    a gale moans | a moaning gale
engine
    an engine runs | a running engine
    a motor is idling | an idling motor
    an engine rumbles | the rumble of an engine
    a vehicle's engine hums steadily | the steady hum of a vehicle's engine
    a diesel truck chugs | a chugging diesel truck
door_wood_knock
    someone knocks on a door | knocking on a door
    a person knocks on wood | knocks on wood
    there is a knock at the door | a knock at the door
    a wooden door is knocked several times | several knocks on a wooden door
    knuckles rap on a panel | the rapping of knuckles on a panel
clock_tick
    a clock ticks | a ticking clock
    a clock is ticking steadily | the steady ticking of a clock
    a watch ticks and tocks | ticking from a watch
    the second hand of a clock clicks | clicks of a clock's second hand
    a timepiece counts the seconds | a timepiece counting the seconds
chirping_birds
    a bird chirps | a chirping bird
    birds are singing | birdsong
    a small bird tweets | the tweeting of a small bird
    birds call to each other | calls of birds
    a songbird warbles | a warbling songbird
phone_ring
    a phone rings | a ringing phone
    a telephone is ringing | the ringing of a telephone
    an old telephone rings again and again | an old telephone ringing
    a landline phone rings loudly | loud rings of a landline phone
    an unanswered call jangles | the jangle of an unanswered call
footsteps
    someone walks | footsteps
    a person is walking on gravel | a person walking on gravel
    footsteps approach | approaching footsteps
    someone takes slow steps | slow steps
    heavy boots tread along | the tread of heavy boots
thunderstorm
    thunder rumbles | rumbling thunder
    thunder rolls | a roll of thunder
    a thunderstorm rages | a raging thunderstorm
    thunder cracks and booms | a clap of thunder
    lightning strikes nearby | a lightning strike nearby
whistle
    a person whistles | whistling
    someone is whistling a tune | a whistled tune
    a man whistles a melody | a man whistling a melody
    somebody whistles to themselves | whistling by somebody
    pursed lips blow notes | notes blown with pursed lips
water_drops
    water drips | dripping water
    drops of water fall | falling drops of water
    a faucet drips | a dripping faucet
    water is dripping into a sink | water dripping into a sink
    droplets plop into a puddle | droplets plopping into a puddle
crickets
    crickets chirp | chirping crickets
    insects buzz in the night | buzzing insects in the night
    crickets are calling | the calling of crickets
    a cricket trills | the trill of a cricket
    grasshoppers stridulate in a meadow | a meadow full of grasshoppers
hand_saw
    someone saws wood | sawing of wood
    a hand saw cuts through wood | a hand saw cutting through wood
    a saw moves back and forth | a saw moving back and forth
    a person is sawing a board | a person sawing a board
    a carpenter rips through timber | a carpenter ripping through timber
dog
    a dog barks | a barking dog
    a dog is barking loudly | loud barking from a dog
    a dog woofs | the woof of a dog
    a small dog yaps | the yapping of a small dog
    a hound bays | a baying hound
chainsaw
    a chainsaw runs | a running chainsaw
    a chainsaw cuts a tree | a chainsaw cutting a tree
    someone is using a chainsaw | someone using a chainsaw
    a chainsaw revs and whines | the whine of a revving chainsaw
    a lumberjack fells a trunk with a power tool | a lumberjack's power tool at work
crackling_fire
    a fire crackles | a crackling fire
    wood burns and pops | the popping of burning wood
    a campfire is crackling | the crackle of a campfire
    flames snap in a fireplace | snapping flames in a fireplace
    embers hiss on a hearth | embers hissing on a hearth
helicopter
    a helicopter flies by | a helicopter flying by
    a helicopter hovers | a hovering helicopter
    helicopter blades are spinning | spinning helicopter blades
    a helicopter passes overhead | a helicopter passing overhead
    a chopper's rotor thumps | the thump of a chopper's rotor
crying_baby
    a baby cries | a crying baby
    a baby is wailing | the wails of a baby
    an infant cries loudly | loud crying from an infant
    a small child sobs | the sobbing of a small child
    a newborn bawls | a bawling newborn
sneezing
    a person sneezes | a sneezing person
    someone sneezes loudly | a loud sneeze
    a man lets out a sneeze | a sneeze from a man
    somebody is sneezing | somebody sneezing
    a hay fever sufferer goes achoo | an achoo from a hay fever sufferer
rooster
    a rooster crows | a crowing rooster
    a rooster is calling | the call of a rooster
    a rooster crows in a farmyard | a rooster in a farmyard
    a cock crows loudly | the loud crow of a cock
    a farm bird announces the morning | a farm bird announcing the morning
sea_waves
    waves roll onto a beach | waves rolling onto a beach
    ocean waves crash | crashing ocean waves
    the sea washes ashore | the wash of the sea
    waves are breaking on the shore | waves breaking on the shore
    surf surges over sand | surf surging over sand
""")
PHRASINGS = {name: tuple(map(_parse_phrasing, lines)) for name, lines in _PHRASINGS.items()}

# For ESC-50's other categories; {n} is the category's name in words. Correct for one thing, for many, and for stuff.
GENERIC: tuple[Phrasing, ...] = (
    ("{n} can be heard", "the sound of {n}"),
    ("there is the noise of {n}", "the noise of {n}"),
    ("one can hear {n}", "audible {n}"),
    ("the sound of {n} rings out", "sounds of {n}"),
    ("{n} noises carry over", "{n} noises"),
)

# One more phrasing of each, which no list above has: the queries of a validation split, if phrasings are held out.
_VALIDATION = """
siren: a warning signal howls through the streets | a howling warning signal
church_bells: a steeple peals | the pealing of a steeple
clock_alarm: a wake-up signal bleeps | the bleeps of a wake-up signal
rain: a downpour splashes | a splashing downpour
wind: a storm sweeps over a field | the sweep of a storm over a field
engine: a car throbs at a standstill | the throb of a standing car
door_wood_knock: a visitor pounds to be let in | the pounding of a visitor
clock_tick: a pendulum swings with a tock | the tock of a pendulum
chirping_birds: a robin trills in a tree | a robin's trill
phone_ring: a receiver shrills until it is lifted | a shrill receiver
footsteps: shoes clack across a floor | the clack of shoes across a floor
thunderstorm: a storm growls and crashes | the growl and crash of a storm
whistle: a piercing tone is blown between two fingers | a piercing tone between two fingers
water_drops: a leak trickles into a bucket | the trickle of a leak
crickets: cicadas buzz in the grass | cicadas in the grass
hand_saw: teeth of steel scrape through a plank | steel teeth on a plank
dog: a puppy growls and yelps | a yelping puppy
chainsaw: a motor saw roars in a forest | the roar of a motor saw
crackling_fire: burning logs spit sparks | the sparks of burning logs
helicopter: a rotary aircraft whirs above | the whir of a rotary aircraft
crying_baby: a toddler screams in a cot | a screaming toddler
sneezing: a nose explodes with a cold | the explosion of a cold nose
rooster: a cockerel shouts at dawn | the shout of a cockerel at dawn
sea_waves: breakers pound a coast | breakers on a coast
"""
VALIDATION_PHRASINGS = {
    name: _parse_phrasing(line) for name, line in (row.split(": ") for row in _VALIDATION.strip().splitlines())
}
VALIDATION_GENERIC: Phrasing = ("somewhere {n} makes itself heard", "a recording of {n}")

_TAGS = """
siren: siren, police, ambulance
church_bells: bell, church bell, bells
clock_alarm: alarm, beep, alarm clock
rain: rain, rainfall, raining
wind: wind, windy, howling wind
engine: engine, motor, truck idle
door_wood_knock: knock, door knock, knocking
clock_tick: clock, ticking, tick tock
chirping_birds: birds, birdsong, bird chirp
phone_ring: phone, telephone ring, ringing phone
footsteps: footsteps, walking, steps gravel
thunderstorm: thunder, storm, thunderstorm
whistle: whistle, whistling, human whistle
water_drops: water drop, dripping, drip
crickets: crickets, insects, night crickets
hand_saw: saw, sawing wood, hand saw
dog: dog, bark, dog barking
chainsaw: chainsaw, chain saw, chainsaw cutting
crackling_fire: fire, campfire, fire crackle
helicopter: helicopter, chopper, heli flyby
crying_baby: baby, baby cry, crying
sneezing: sneeze, achoo, sneezing
rooster: rooster, cock, rooster crow
sea_waves: waves, sea, ocean waves
"""
TAGS = {name: tuple(tags.split(", ")) for name, tags in (line.split(": ") for line in _TAGS.strip().splitlines())}

DEVICES = ("zoom h4n", "zoom h1", "tascam dr-40", "sony pcm-m10", "olympus ls-5", "my iphone", "rode ntg-2")
LOCATIONS = ("in the garden", "from my window", "at home", "in the yard", "near the station", "on holiday", "at a farm")
